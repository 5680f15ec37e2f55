"""Engine of the pairwise losses: sums of exponentials over all pairs in memory linear in n.

From the losses down:

- `sharding`: calls a loss on local or global arrays, compiled once.
- `validation`, `weights`: checks of arguments; masks and weights.
- `reductions`: the two scalars that losses consist of, with their gradients.
- `collectives`: sums over the points of all devices.
- `sums`, `block_sweep`: sums over the pairs of one device, block by block.
- `logits`, `far_points`, `precision`: logits of one block.
- `hopper`: the same sums in one kernel of Hopper GPUs.
"""
