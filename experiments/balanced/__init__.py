"""*Self-Supervised Learning as an Approximation of Supervised Learning*, one file per item."""
