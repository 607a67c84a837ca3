"""The Qwen3.5/3.6 mixture-of-experts family, text model only."""
