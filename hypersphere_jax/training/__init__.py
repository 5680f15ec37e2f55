"""Training: the loop, the step and its objectives, optimizers, checkpoints, the folder of a run."""
