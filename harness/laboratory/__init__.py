"""Experiments about the harness itself: what it must find, and how a cause is shown."""
