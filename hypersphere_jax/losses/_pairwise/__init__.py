"""Engine of the pairwise losses: sums of exponentials over all pairs in memory linear in n.

From the losses down:

- `sharding`: calls a loss on local or global arrays, compiled once.
- `validation`, `options`: checks of arguments, masks and weights; shared options.
- `reductions`: the two scalars that losses consist of, with their gradients.
- `sums`, `collectives`: sums over the pairs of one device and of all devices.
- `block_sweep`: sums over the pairs of one device, block by block.
- `points`, `logits`: logits of one block.
- `hopper`: the same sums in one kernel of Hopper GPUs.
"""
