"""What ``benchmarks/gpu_check.py`` is made of. Runs on the host too, to show that it works."""
