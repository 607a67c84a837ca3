"""The producer's floor: turns a bound plan into state in memory, generically."""
