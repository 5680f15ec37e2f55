"""Engine of the pairwise losses: sums of exponentials over all pairs in memory linear in n.

From the losses down:

- `sharding`: calls a loss on local or global arrays, compiled once.
- `validation`, `weights`, `options`: checks of arguments; masks and weights; shared options.
- `reductions`: the two scalars that losses consist of, with their gradients.
- `pair_sets`, `collectives`: sums over the points of all devices.
- `sums`, `block_sweep`: sums over the pairs of one device, block by block.
- `points`, `logits`, `precision`: logits of one block.
- `hopper`: the same sums in one kernel of Hopper GPUs.
"""
