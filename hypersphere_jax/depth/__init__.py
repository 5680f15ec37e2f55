"""Depth prediction on frozen features (Wang & Isola, B.1): data, predictor and evaluation."""
