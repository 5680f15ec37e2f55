"""Configs: what they refuse, their defaults, and their way to JSON and back."""

import dataclasses
import os
from pathlib import Path

import pytest

from hypersphere_jax import config as of

NAN, INF = float("nan"), float("inf")
SECOND = {"coordinator": "a:7000", "num_processes": 2, "process_index": 1}
L2, QUEUE = {"l2": (1.0,)}, {"queue_size": 4}
LABELLED = of.ObjectiveConfig(supervised_weight=1), of.ObjectiveConfig(loss="dcl")
# Of each config: what it takes, then what it refuses.
CASES = [
    (of.OptimizerConfig, {"momentum": 0.0}, {"momentum": 1.0}, {"lars_trust": 0.0}),
    (of.OptimizerConfig, {"batch_size": 2}, {"batch_size": 1}, {"decay_factor": 0.0}),
    (of.OptimizerConfig, {"learning_rate": 0.0}, {"learning_rate": -1.0}, {"learning_rate": INF}),
    (of.OptimizerConfig, {"clip_norm": 0.1}, {"clip_norm": 0.0}, {"clip_norm": NAN}),
    (of.OptimizerConfig, {"decay_at": (1.0,)}, {"decay_at": (0.0,)}, {"decay_at": (1.1,)}),
    (of.OptimizerConfig, {"warmup_epochs": 155}, {"warmup_epochs": 156}, {"epochs": 0}),
    (of.ObjectiveConfig, {"align_weight": 0.0}, {"align_weight": NAN}, {"align_weight": -1.0}),
    (of.ObjectiveConfig, {}, {"align_weight": 0.0, "uniform_weight": 0.0}, {"uniform_t": 0.0}),
    (of.ObjectiveConfig, {"loss": "dcl"}, {"loss": "dcl", "align_weight": 2.0}),
    (of.MocoConfig, {"queue_size": 2, "ema_decay": 1.0}, {"ema_decay": 0.9}, {"queue_size": -1}),
    (of.ModelConfig, {"dim": 2}, {"dim": 1}, {"width": 0.0}, {"image_size": 3}),
    (of.ModelConfig, {"head": "moco_v2", "head_hidden": 3}, {"head_hidden": 3}, {"embedding": 3}),
    (of.DataConfig, {"fraction": 1.0}, {"fraction": 0.0}, {"fraction": 1.1}),
    (of.DataConfig, {"folds": 2, "fold": 1}, {"folds": 2, "fold": 2}, {"folds": 0}),
    (of.DataConfig, {"bits": 256}, {"bits": 257}, {"name": "random_bits"}, {"subset_size": 1}),
    (of.RuntimeConfig, {"keep_last": 2}, {"keep_last": 1}, {"workers": -1}, {"devices": 0}),
    (of.RuntimeConfig, SECOND, SECOND | {"process_index": 2}, SECOND | {"coordinator": "a"}),
    (of.FinetuneConfig, {"learning_rates": (1, 2)}, {"learning_rates": (1, 1)}, {"fraction": 0}),
    (of.ProbeConfig, {"folds": 2}, {"folds": 1}, {"k": (0,)}, {"temperature": 1.0}),
    (of.ProbeConfig, L2 | {"protocols": ("lbfgs",)}, L2 | {"protocols": ("knn",)}),
    (of.MetricsConfig, {"t": 1e6}, {"t": 2e6}, {"alpha": 0.0}),
    (of.PretrainConfig, {"seed": 0}, {"seed": -1}, {"name": "a/b"}, {"name": "a\n"}),
    (
        of.PretrainConfig,
        {"seed": 2**32 - 1},
        {"seed": 2**32},
        {"name": ".."},
        {"seed": True},
        {"seed": 0.5},
    ),
    (
        of.PretrainConfig,
        {"runs_dir": "a\n"},
        {"runs_dir": "a\0"},
        {"runs_dir": ""},
        {"init_step": -1},
    ),
    (of.ModelConfig, {"name": "resnet18"}, {"name": "resnet-18"}, {"dim": 10**60}, {"width": INF}),
    (of.OptimizerConfig, {"adam_betas": (0, 0.9)}, {"adam_betas": (0.9, 1)}, {"adam_betas": (0,)}),
    (of.PretrainConfig, QUEUE, *(QUEUE | {"objective": other} for other in LABELLED)),
]
FIRST = {of.FinetuneConfig: {"run": "a"}, of.MetricsConfig: {"run": "a"}}
FIRST |= {of.ProbeConfig: {"runs": ("a",)}, of.DepthConfig: {"runs": ("a",)}}


def test_what_is_taken_and_what_is_refused():
    for cls, taken, *refused in CASES:
        cls(**FIRST.get(cls, {}), **taken)
        for values in refused:
            with pytest.raises(of.UserError):
                cls(**FIRST.get(cls, {}), **values)
                pytest.fail(f"{cls.__name__} takes {values}")


def test_defaults_are_those_of_the_papers():
    rule, loss, moco = of.OptimizerConfig(), of.ObjectiveConfig(), of.MocoConfig(4)
    assert [share * rule.epochs for share in rule.decay_at] == pytest.approx([155, 170, 185])
    assert (rule.optimizer, rule.momentum, rule.weight_decay) == ("sgd", 0.9, 1e-4)
    assert (rule.learning_rate, rule.batch_size, rule.scaling) == (0.12, 256, "linear")
    assert (rule.decay_factor, rule.lars_trust, rule.adam_betas) == (0.1, 0.001, (0.9, 0.999))
    assert (loss.contrastive_weight, loss.align_weight, loss.uniform_weight) == (0, 1, 1)
    assert (loss.align_alpha, loss.uniform_t, loss.contrastive_tau) == (2, 2, 0.5)
    assert loss.uniform_intra_batch and loss.loss == "weighted" and loss.supervised_weight == 0
    assert (moco.ema_decay, moco.ema_schedule, moco.ema_stats) == (0.999, "constant", "own")
    depth = of.DepthConfig(("a",)).optimizer
    assert [share * depth.epochs for share in depth.decay_at] == pytest.approx([70, 90, 100, 110])
    assert (depth.optimizer, depth.adam_betas, depth.decay_factor) == ("adam", (0.5, 0.999), 0.2)
    assert (depth.learning_rate, depth.weight_decay, depth.batch_size) == (3e-3, 0, 128)
    probe, metrics = of.ProbeConfig(("a",)), of.MetricsConfig("a")
    assert (probe.layers, probe.protocols, probe.k) == (("output",), ("lbfgs", "knn"), (5,))
    votes = probe.metric, probe.vote, probe.temperature, probe.pool
    assert votes == ("cosine", "majority", 0.1, "none")
    assert (metrics.split, metrics.alpha, metrics.t) == ("test", 2, 2)
    assert of.ModelConfig().classifier_layer == "output" and of.RuntimeConfig().keep_last == 3


def test_to_json_and_back():
    rule = of.OptimizerConfig(decay_at=(0.5, 0.75), adam_betas=(0.5, 0.9))
    config = of.PretrainConfig(seed=3, folds=5, fold=2, optimizer=rule)
    plain = of.to_dict(config)
    assert plain["optimizer"]["decay_at"] == [0.5, 0.75]
    again = of.from_dict(of.PretrainConfig, plain)
    assert again == config and hash(again) == hash(config)
    with pytest.raises(of.UserError, match=r"config: no option 'optimizer.rate'"):
        of.from_dict(of.PretrainConfig, plain | {"optimizer": {"rate": 1}})
    other = of.to_dict(dataclasses.replace(config, seed=4)) | {"new": 1}
    del other["name"]
    found = of.differences(plain, other | {"data": plain["data"] | {"fold": 1}})
    changed = ["data.fold: 2 -> 1", "name: default -> None", "new: None -> 1", "seed: 3 -> 4"]
    assert sorted(found) == changed


class Place:
    """A path of another type."""

    def __fspath__(self):
        return os.path.join("some", "where")


@pytest.mark.parametrize("place", [Path("some/where"), Place()])
def test_paths_are_text_where_a_field_is(place):
    names = ("runs_dir", "data_dir", "cache_dir", "init_from", "data", "classes")
    given, text = (dict.fromkeys(names, value) for value in (place, os.fspath(place)))
    assert of.PretrainConfig(**given) == of.PretrainConfig(**text)
    assert of.to_dict(of.PretrainConfig(**given)) == of.to_dict(of.PretrainConfig(**text))
    probe = of.ProbeConfig(runs=[place, "b"], runs_dir=place)
    assert probe.runs == (os.fspath(place), "b") and probe.runs_dir == os.fspath(place)
    assert isinstance(of.ProbeConfig(runs=("a",), out=Path("a.csv")).out, Path)
