"""The Gemma family: dense text decoders with full and sliding-window attention layers."""
