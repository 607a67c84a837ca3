"""A research harness for GPU inference: frozen plan -> realized bytes -> audited evidence."""

__version__ = "0.1.0"
