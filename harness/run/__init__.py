"""The supervisor and the entries of its child processes."""
