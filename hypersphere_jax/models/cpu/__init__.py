"""Kernels for CPUs, where XLA's own convolutions and wide products are slow. `ops` chooses them."""
