"""Configs: values that they refuse, defaults of the papers, JSON, and files of options."""

import json
from typing import Any

import pytest
from tiny_runs import parse_pretrain

import experiments
from experiments.options import QuickstartConfig, ReproduceConfig
from hypersphere_jax import cli
from hypersphere_jax import configs as C
from hypersphere_jax.configs.base import field_types
from hypersphere_jax.configs.flags import with_flags
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
        if kind is Any:  # an object of the user's
            continue
        for value in (object(), (object(),), *wrong.get(kind, ())):
            with pytest.raises(C.UserError, match=rf"\b{name}\b"):
                made(cls, **{name: value})


# Of a class: an option, an allowed value at the bound, and a value beyond it.
BOUNDS = [
    (C.RunConfig, "seed", 2**32 - 1, 2**32),
    (C.RunConfig, "name", "a", "a/b"),
    (C.DataConfig, "fraction", 1.0, 0.0),
    (C.DataConfig, "folds", 1, 0),
    (C.ModelConfig, "model", "resnet18", "resnet-18"),
    (C.OptimizerConfig, "microbatch_size", 128, 100),
    (C.ModelConfig, "image_size", 4, 3),
    (C.ObjectiveConfig, "uniform_t", 1e-3, 0.0),
    (C.MocoConfig, "queue_size", 0, -1),
    (C.OptimizerConfig, "epochs", 200, 0),
    (C.OptimizerConfig, "decay_at", (), (0.5, 1.1)),
    (C.OptimizerConfig, "decay_at", [0.5], (-0.5,)),
    (C.OptimizerConfig, "warmup_epochs", 155, 156),
    (C.RuntimeConfig, "keep_last", 2, 1),
    (C.EvaluateConfig, "eval_images", "all", 19),
    (C.ProbeConfig, "runs", ("a", "a"), ()),
    (C.ProbeConfig, "k", (1, 3), (0,)),
]


@pytest.mark.parametrize(("cls", "option", "good", "bad"), BOUNDS)
def test_values_beyond_a_bound_are_refused(cls, option, good, bad):
    config = made(cls, **{option: good})
    assert getattr(config, option) == (tuple(good) if isinstance(good, list) else good)
    with pytest.raises(C.UserError, match=rf"\b{option}\b"):
        made(cls, **{option: bad})
    with pytest.raises(C.UserError, match=rf"\b{option}\b"):
        config.replace(**{option: bad})


# Of a class: valid options, and one more that they exclude.
CONFLICTS = [
    (C.RunConfig, {}, {"init_step": 3}),
    (C.DataConfig, {"folds": 2}, {"fold": 2}),
    (C.DataConfig, {}, {"data": "random_bits"}),
    (C.ModelConfig, {"batch_norm": "sync"}, {"bn_groups": 4}),
    (C.ModelConfig, {"model": "resnet18"}, {"init": "authors"}),
    (C.ObjectiveConfig, {"loss": "dcl"}, {"align_weight": 2.0}),
    (C.OptimizerConfig, {}, {"adam_betas": (0.8, 0.9)}),
    (C.OptimizerConfig, {"optimizer": "adam"}, {"lars_trust": 0.1}),
    (C.OptimizerConfig, {"schedule": "cosine"}, {"decay_at": (0.5,)}),
    (C.RuntimeConfig, CLUSTER, {"process_index": 2}),
    (C.PretrainConfig, {"queue_size": 4}, {"supervised_weight": 1}),
    (C.PretrainConfig, {"queue_size": 4}, {"loss": "dcl"}),
    (C.PretrainConfig, {}, {"uniform_intra_batch": False}),
    (C.PretrainConfig, {}, {"moco_symmetric": True}),
    (C.PretrainConfig, {"queue_size": 4}, {"microbatch_size": 8}),
    (C.PretrainConfig, {"model": "sentence_gru"}, {"microbatch_size": 8}),
    (C.PretrainConfig, {"microbatch_size": 8}, {"batch_norm": "split"}),
    (C.PretrainConfig, {}, {"remat": True}),
    (C.FinetuneConfig, CLUSTER, {"learning_rates": (1, 2)}),
    (C.ImportConfig, {"head": "none"}, {"dim": 5}),
    (C.ProbeConfig, {"protocols": ("knn",)}, {"l2": (1.0,)}),
    (C.MetricsConfig, {"run": "a.npy"}, {"split": "train"}),
    (C.MetricsConfig, {"run": "a.npy"}, {"devices": 1}),
]


@pytest.mark.parametrize(("cls", "options", "more"), CONFLICTS)
def test_options_that_exclude_each_other_are_refused(cls, options, more):
    config = made(cls, **options)
    (name,) = more
    with pytest.raises(C.UserError, match=name):
        config.replace(**more)


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


@pytest.mark.parametrize("name", ["", *experiments.PRETRAIN])
def test_configs_survive_json(name):
    config = experiments.find(name) if name else C.PretrainConfig(decay_at=[0.5, 1], folds=2)
    again = C.from_dict(C.PretrainConfig, json.loads(json.dumps(C.to_dict(config))))
    assert again == config and hash(again) == hash(config)


@pytest.mark.parametrize("name", ["epohcs", "EPOCHS"])
def test_unknown_options_are_refused_with_the_similar_one(name):
    with pytest.raises(C.UserError, match="epochs"):
        C.from_dict(C.PretrainConfig, {name: 3})
    with pytest.raises(C.UserError, match="epochs"):
        C.PretrainConfig().replace(**{name: 3})


# Files of options.

OPTIONS = {"name": "mine", "model": "resnet18", "learning_rate": 1e-2, "decay_at": [0.5, 1]}
OPTIONS |= {
    "optimizer": "adamw",
    "adam_betas": [0.8, 0.9],
    "remat": True,
    "devices": None,
    "dim": 128,
}
YAML = """
# Comments are allowed.
name: mine
model: resnet18
learning-rate: 1e-2
decay_at: [0.5, 1]
optimizer: adamw
adam_betas:
  - 0.8
  - 9.0e-1
remat: true
devices: null
dim: 128
"""


@pytest.fixture
def parse(tmp_path):
    """Return the function from the text of a file, and flags, to the config of `pretrain`."""

    def parse(text, *flags):
        file = tmp_path / "options.yaml"
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return parse_pretrain("--config", str(file), *flags)

    return parse


@pytest.mark.parametrize(
    "text",
    [YAML, json.dumps(OPTIONS), b"\xef\xbb\xbf" + YAML.encode(), YAML.replace("\n", "\r\n")],
    ids=["yaml", "json", "byte order mark", "CRLF"],
)
def test_flags_override_a_file(text, parse):
    assert parse(text) == C.PretrainConfig(**OPTIONS)
    config = parse(text, "--dim", "16", "--lr", "1")
    assert config == C.PretrainConfig(**OPTIONS | {"dim": 16, "learning_rate": 1.0})


def test_a_file_overrides_an_experiment(tmp_path):
    (tmp_path / "a.yaml").write_text("epochs: 7")
    name = "moco_cifar10/align_uniform"
    config = parse_pretrain(name, "--config", str(tmp_path / "a.yaml"), "--seed=2")
    assert config == experiments.find(name).replace(epochs=7, seed=2)


@pytest.mark.parametrize("run", ["mine", "other"])
def test_a_file_of_a_finetuning(run, tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("run: mine\nlearning_rates: [0.1, 0.2]\n")
    arguments = [] if run == "mine" else [run]
    arguments += ["--config", str(file), "--seed", "3"]
    config = cli.parse_run(C.FinetuneConfig, "finetune", arguments)
    assert config == C.FinetuneConfig(run, learning_rates=(0.1, 0.2), seed=3)


def test_the_record_of_a_run_is_a_file_of_options(short_run):
    file = short_run / "config.json"
    recorded = json.loads(file.read_text())["config"]
    assert C.to_dict(parse_pretrain("--config", str(file))) == recorded
    again = parse_pretrain("--config", str(file), "--epochs=7", "--data", "cifar10")
    assert C.to_dict(again) == recorded | {"data": "cifar10", "epochs": 7}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("epohcs: 3", "epochs"),
        ("1: 2", "1"),
        ("epochs: ten", "epochs"),
        ("epochs: 0", "epochs"),
        ("learning_rate: .nan", "learning_rate"),
        ("a: [1\nb: 2", "options.yaml"),
        ("name: 2026-13-45", "options.yaml"),
        ("- epochs", "options.yaml"),
    ],
)
def test_invalid_files_are_refused(text, named, parse):
    with pytest.raises(C.UserError, match=named):
        parse(text)


@pytest.mark.parametrize(
    ("message", "flags"),
    [
        ("batch_size=300 does not divide", "--batch-size 300 does not divide"),
        ("leave them, choose another name=, or", "leave them, choose another --name, or"),
        ("resume with force=True", "resume with --force"),
        ("unit_norm=False: leave it out", "--no-unit-norm: leave it out"),
        ("runs/tau=0.5/a: no run", "runs/tau=0.5/a: no run"),
        ("from Python, train(config, loss=…)", "from Python, train(config, loss=…)"),
        ("XLA_FLAGS=--a=b", "XLA_FLAGS=--a=b"),
    ],
)
def test_messages_of_the_command_line_name_flags(message, flags):
    assert with_flags(message) == flags
