"""Evaluation of encoders: features, linear probes, k-NN, retrieval, alignment and uniformity."""
