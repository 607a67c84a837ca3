"""Sweeps: many jobs, each a fresh process, on the engine that a launcher names."""
