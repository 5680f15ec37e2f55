"""Checks that fit ten minutes on one GPU; `python -m benchmarks.gpu --help` lists them."""
