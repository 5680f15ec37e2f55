"""What an encoder is worth: features from checkpoints, probes, k-NN, alignment and uniformity."""
