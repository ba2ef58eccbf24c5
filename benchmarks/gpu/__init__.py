"""Parts of `benchmarks/gpu_check.py`: one GPU, eight minutes, one table."""
