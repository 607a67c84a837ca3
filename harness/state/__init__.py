"""State in memory: arenas, sessions, digests. The floor below realization."""
