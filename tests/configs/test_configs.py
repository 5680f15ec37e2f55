"""Config classes: values that they refuse, defaults of the papers, conversion to and from JSON."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest

import experiments
from experiments.options import QuickstartConfig, ReproduceConfig
from hypersphere_jax import configs as C
from hypersphere_jax.configs.base import field_types
from hypersphere_jax.depth.config import DepthConfig
from hypersphere_jax.text.prepare import PrepareTextConfig

NAN, INF = float("nan"), float("inf")
CLUSTER = {"coordinator": "a:7000", "num_processes": 2, "process_index": 1}
# Options without a default.
REQUIRED = {
    DepthConfig: {"runs": ("a",)},
    C.ExportConfig: {"run": "a", "out": "a.npz"},
    C.FeaturesConfig: {"run": "a", "out": "a.npy"},
    C.FinetuneConfig: {"run": "a"},
    C.ImportConfig: {"file": "a.pth", "name": "a"},
    C.MetricsConfig: {"run": "a"},
    C.PrepareConfig: {"data": "cifar10"},
    PrepareTextConfig: {"raw": "a.txt", "out": "a"},
    C.ProbeConfig: {"runs": ("a",)},
    C.ReportConfig: {"runs": ("a",)},
}
SECTIONS = (
    *(C.RunConfig, C.DataConfig, C.ModelConfig, C.ObjectiveConfig, C.MocoConfig),
    *(C.OptimizerConfig, C.RuntimeConfig, C.EvaluateConfig),
)
CLASSES = (*SECTIONS, C.PretrainConfig, C.InspectConfig, QuickstartConfig, ReproduceConfig)


def made(cls, **options):
    return cls(**REQUIRED.get(cls, {}) | options)


@pytest.mark.parametrize("cls", [*CLASSES, *REQUIRED], ids=lambda cls: cls.__name__)
def test_values_of_another_type_are_refused(cls):
    wrong = {int: (1.5, True, "1", NAN), float: ("1", True, NAN, INF), bool: (1, "yes"), str: (1,)}
    for name, kind in field_types(cls).items():
        if kind is Any:  # a part of the user's own
            continue
        for value in (object(), (object(),), *wrong.get(kind, ())):
            with pytest.raises(C.UserError, match=rf"^{name}="):
                made(cls, **{name: value})


# Of a class: an option, an allowed value at the bound, and a value beyond it.
BOUNDS = [
    (C.RunConfig, "seed", 2**32 - 1, 2**32),
    (C.RunConfig, "seed", 0, -1),
    (C.RunConfig, "name", "a", "a/b"),
    (C.RunConfig, "name", "...", ".."),
    (C.ExportConfig, "step", 0, -1),
    (C.FeaturesConfig, "step", 0, -1),
    (C.MetricsConfig, "step", 0, -1),
    (C.DataConfig, "fraction", 1.0, 0.0),
    (C.DataConfig, "folds", 1, 0),
    (C.DataConfig, "bits", 256, 257),
    (C.DataConfig, "channels", 3, 2),
    (C.DataConfig, "max_tokens", 2, 1),
    (C.ModelConfig, "model", "resnet18", "resnet-18"),
    (C.ModelConfig, "dim", 2, 1),
    (C.ModelConfig, "width", 100.0, 0.0),
    (C.ModelConfig, "image_size", 4, 3),
    (C.ObjectiveConfig, "align_weight", 0.0, -1.0),
    (C.ObjectiveConfig, "uniform_t", 1e-3, 0.0),
    (C.MocoConfig, "queue_size", 0, -1),
    (C.OptimizerConfig, "epochs", 200, 0),
    (C.OptimizerConfig, "batch_size", 2, 1),
    (C.OptimizerConfig, "learning_rate", 0.0, -1.0),
    (C.OptimizerConfig, "momentum", 0.0, 1.0),
    (C.OptimizerConfig, "clip_norm", 0.1, 0.0),
    (C.OptimizerConfig, "decay_factor", 2.0, 0.0),
    (C.OptimizerConfig, "decay_at", (), (0.5, 1.1)),
    (C.OptimizerConfig, "adam_betas", [0, 0.9], (0.9,)),
    (C.OptimizerConfig, "warmup_epochs", 155, 156),
    (C.RuntimeConfig, "keep_last", 2, 1),
    (C.RuntimeConfig, "workers", 1024, 1025),
    (C.RuntimeConfig, "devices", 1, 0),
    (C.RuntimeConfig, "checkpoint_every_minutes", 1e-3, 0),
    (C.EvaluateConfig, "eval_images", "all", 19),
    (C.EvaluateConfig, "evaluators", ("knn",), ()),
    (C.FinetuneConfig, "learning_rates", (1, 2), (1, 1)),
    (C.FinetuneConfig, "fraction", 1, 0),
    (C.FinetuneConfig, "step", 0, -1),
    (C.ProbeConfig, "runs", ("a", "a"), ()),
    (C.ProbeConfig, "folds", 2, 1),
    (C.ProbeConfig, "step", 0, -1),
    (C.ProbeConfig, "k", (1, 3), (0,)),
    (C.MetricsConfig, "t", 1e6, 2e6),
    (DepthConfig, "folds", 0, 1),
    (DepthConfig, "step", 0, -1),
    (PrepareTextConfig, "held_out", 0, 1),
    (ReproduceConfig, "jobs", 1, 0),
]


@pytest.mark.parametrize(("cls", "option", "good", "bad"), BOUNDS)
def test_values_beyond_a_bound_are_refused(cls, option, good, bad):
    config = made(cls, **{option: good})
    assert getattr(config, option) == (tuple(good) if isinstance(good, list) else good)
    with pytest.raises(C.UserError, match=rf"\b{option}="):
        made(cls, **{option: bad})
    with pytest.raises(C.UserError, match=rf"\b{option}="):
        config.replace(**{option: bad})


# Of a class: valid options, and one more that they exclude.
CONFLICTS = [
    (C.RunConfig, {}, {"init_step": 3}),
    (C.RunConfig, {"init_from": "a"}, {"init_step": -1}),
    (C.DataConfig, {"folds": 2}, {"fold": 2}),
    (C.DataConfig, {}, {"subset_size": 9}),
    (C.DataConfig, {}, {"data": "random_bits"}),
    (C.ModelConfig, {"batch_norm": "sync"}, {"bn_groups": 4}),
    (C.ModelConfig, {}, {"head_hidden": 3}),
    (C.ModelConfig, {}, {"embedding": 3}),
    (C.ModelConfig, {}, {"stem": "cifar"}),
    (C.ModelConfig, {"model": "resnet18"}, {"init": "authors"}),
    (C.ModelConfig, {"model": "sentence_gru"}, {"head": "moco_v2"}),
    (C.ObjectiveConfig, {"loss": "dcl"}, {"align_weight": 2.0}),
    (C.ObjectiveConfig, {"loss": "nt_xent"}, {"loss_lam": 1}),
    (C.OptimizerConfig, {"optimizer": "adam"}, {"nesterov": True}),
    (C.RuntimeConfig, CLUSTER, {"process_index": 2}),
    (C.RuntimeConfig, {"coordinator": None}, {"num_processes": 2}),
    (C.PretrainConfig, {"queue_size": 4}, {"supervised_weight": 1}),
    (C.PretrainConfig, {"queue_size": 4}, {"loss": "dcl"}),
    (C.PretrainConfig, {}, {"uniform_intra_batch": False}),
    (C.PretrainConfig, {}, {"classifier_layer": "fc7"}),
    (C.FinetuneConfig, CLUSTER, {"learning_rates": (1, 2)}),
    (C.ImportConfig, {"head": "none"}, {"dim": 5}),
    (C.ProbeConfig, {"protocols": ("knn",)}, {"l2": (1.0,)}),
    (C.ProbeConfig, {"vote": "majority"}, {"temperature": 1.0}),
    (C.ProbeConfig, {"all_steps": True}, {"step": 3}),
    (C.MetricsConfig, {"run": "a.npy"}, {"split": "train"}),
    (C.MetricsConfig, {"run": "a"}, {"normalize": True}),
    (ReproduceConfig, {"item": None}, {"dry_run": True}),
]


@pytest.mark.parametrize(("cls", "options", "more"), CONFLICTS)
def test_options_that_exclude_each_other_are_refused(cls, options, more):
    config = made(cls, **options)
    (name,) = more
    with pytest.raises(C.UserError, match=name):
        config.replace(**more)


def test_a_loss_needs_a_weight():
    with pytest.raises(C.UserError, match="weights"):
        C.ObjectiveConfig(align_weight=0, uniform_weight=0)


def test_defaults_are_those_of_the_papers():
    config, moco = C.PretrainConfig(), C.MocoConfig(queue_size=4)
    assert [share * config.epochs for share in config.decay_at] == pytest.approx([155, 170, 185])
    assert (config.optimizer, config.momentum, config.weight_decay) == ("sgd", 0.9, 1e-4)
    assert (config.learning_rate, config.batch_size, config.scaling) == (0.12, 256, "linear")
    assert (config.contrastive_weight, config.align_weight, config.uniform_weight) == (0, 1, 1)
    assert (config.align_alpha, config.uniform_t, config.contrastive_tau) == (2, 2, 0.5)
    assert (moco.ema_decay, moco.ema_schedule, moco.ema_stats) == (0.999, "constant", "own")
    depth = DepthConfig(("a",)).optimizer
    assert [share * depth.epochs for share in depth.decay_at] == pytest.approx([70, 90, 100, 110])
    assert (depth.optimizer, depth.adam_betas, depth.decay_factor) == ("adam", (0.5, 0.999), 0.2)
    assert (depth.learning_rate, depth.weight_decay, depth.batch_size) == (3e-3, 0, 128)


def test_sections_compose_a_run():
    fields = [field.name for section in SECTIONS for field in dataclasses.fields(section)]
    assert sorted(fields) == sorted(field.name for field in dataclasses.fields(C.PretrainConfig))
    config = C.PretrainConfig(dim=8, queue_size=4, seed=3)
    assert C.section(config, C.ModelConfig) == C.ModelConfig(dim=8)
    parts = [C.section(config, section) for section in SECTIONS]
    assert C.PretrainConfig(**{k: v for part in parts for k, v in vars(part).items()}) == config


@pytest.mark.parametrize("name", ["", *experiments.PRETRAIN])
def test_configs_survive_json(name):
    config = experiments.find(name) if name else C.PretrainConfig(decay_at=[0.5, 1], folds=2)
    again = C.from_dict(C.PretrainConfig, json.loads(json.dumps(C.to_dict(config))))
    assert again == config and hash(again) == hash(config)
    assert C.differences(C.to_dict(again), C.to_dict(config)) == []


def test_differences_name_options_and_both_values():
    old = C.to_dict(C.PretrainConfig())
    new = {name: value for name, value in (old | {"seed": 4}).items() if name != "epochs"}
    assert sorted(C.differences(old, new)) == ["epochs: 200 -> None", "seed: 0 -> 4"]


@pytest.mark.parametrize(
    "make",
    [
        lambda **options: C.from_dict(C.PretrainConfig, options),
        C.PretrainConfig().replace,
    ],
    ids=["from_dict", "replace"],
)
@pytest.mark.parametrize(
    ("name", "similar"), [("epohcs", "epochs"), ("EPOCHS", "epochs"), ("lrate", None)]
)
def test_unknown_options_are_refused_with_the_similar_one(make, name, similar):
    with pytest.raises(C.UserError, match=name) as error:
        make(**{name: 3})
    assert similar is None or f"'{similar}'" in str(error.value)


class OtherPath:
    """A path-like object that is not a `Path`."""

    def __fspath__(self):
        return os.path.join("some", "where")


@pytest.mark.parametrize("path", [Path("some/where"), OtherPath()], ids=["Path", "PathLike"])
def test_paths_become_text_where_a_field_is_text(path):
    names = ("runs_dir", "data_dir", "cache_dir", "init_from", "data", "classes")
    config = C.PretrainConfig(**dict.fromkeys(names, path))
    assert config == C.PretrainConfig(**dict.fromkeys(names, os.fspath(path)))
    probe = C.ProbeConfig(runs=[path, "b"], out="a.csv")
    assert probe.runs == (os.fspath(path), "b") and probe.out == Path("a.csv")
