"""The published R1 schema and its names, as data."""
