"""Kernels for CPUs, where some convolutions and wide products of XLA are slow; see `ops`."""
