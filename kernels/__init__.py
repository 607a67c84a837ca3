"""Tensor operations: named references, CPU paths, Triton kernels. Knows no harness."""
