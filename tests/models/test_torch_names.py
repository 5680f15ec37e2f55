"""PyTorch's names and shapes: torchvision's, and those of Wang & Isola's repository.

What the other names stand for, and the layouts, the forward passes of `test_backbones.py` show.
"""

import dataclasses
import math

import pytest
from torch_networks import RESNET, random_state

from hypersphere_jax.config import ModelConfig, UserError
from hypersphere_jax.models.torch_names import from_torch, torch_names


@pytest.mark.parametrize(
    ("model", "parameters", "tensors", "norms"),
    # torchvision's, with 1000 classes.
    [
        ("resnet18", 11_689_512, 62, 20),
        ("resnet34", 21_797_672, 110, 36),
        ("resnet50", 25_557_032, 161, 53),
    ],
)
def test_names_are_torchvisions(model, parameters, tensors, norms):
    config = ModelConfig(name=model, image_size=224, channels=3, dim=1000)
    found = {path: (entry.name, entry.shape) for path, entry in torch_names(config).items()}
    names = dict(found.values())
    assert len(names) == len(found) == tensors + 2 * norms
    learned = [shape for path, (_, shape) in found.items() if path.startswith("params/")]
    assert sum(map(math.prod, learned)) == parameters
    assert found["params/conv1/layer/kernel"] == ("conv1.weight", (64, 3, 7, 7))
    assert found["stats/conv1/norm/var"] == ("bn1.running_var", (64,))
    wide = 2048 if model == "resnet50" else 512
    assert found["params/head/output/kernel"] == ("fc.weight", (1000, wide))
    assert found["params/layer3/block1/conv2/norm/scale"] == ("layer3.1.bn2.weight", (256,))
    side, before = (1, 1), wide // 2
    assert names["layer4.0.downsample.0.weight"] == (wide, before, *side)
    mean = found["stats/layer4/block0/downsample/norm/mean"]
    assert mean == ("layer4.0.downsample.1.running_mean", (wide,))


def test_errors(rng):
    state = random_state(RESNET, rng)
    with pytest.raises(UserError, match=r"missing are fc\.0\.bias.*unexpected fc\.bias"):
        from_torch(dataclasses.replace(RESNET, head="moco_v2"), state)
    with pytest.raises(UserError, match=r"fc\.bias has shape \(5,\).* needs \(6,\)"):
        from_torch(dataclasses.replace(RESNET, dim=6), state)
    with pytest.raises(UserError, match="small_cnn has no counterpart"):
        torch_names(ModelConfig(image_size=8, channels=1))
