"""Tensor operations: a named reference, a CPU path and one entry each. Knows no harness."""
