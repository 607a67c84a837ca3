"""Checkpoint files: headers, bounded reading, census, sources, conversion. Imports no torch."""
