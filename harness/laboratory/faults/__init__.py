"""Faults that an experiment can plant around the producer, and that its audit must find."""
