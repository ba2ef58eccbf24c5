"""Measures Hedgerow from outside: `python -m benchmarks --help`. Not part of the wheel."""
