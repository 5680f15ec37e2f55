"""The experiments: settings as the papers print them, names, and a shrunk run of each file."""

import importlib
import math

import numpy as np
import pytest
from PIL import Image
from test_cli import ROOT, fails, run_py

import experiments
from hypersphere_jax import runs
from hypersphere_jax.config import PretrainConfig
from hypersphere_jax.data.files import read_classes
from hypersphere_jax.optimizers import make_schedule

# Wang & Isola, B.2.1, B.2.2 and Tables 3, 5, 10; of CIFAR-10 the notebook that its file names:
# batch, epochs, rate, weight decay, queue, decay of the momentum encoder, dimension.
SETTINGS = {
    "moco_cifar10": (512, 200, 0.06, 5e-4, 4096, 0.99, 128),
    "moco_imagenet100": (128, 240, 0.03, 1e-4, 16384, 0.999, 128),
    "moco_v2_imagenet": (256, 200, 0.03, 1e-4, 65536, 0.999, 128),
}
TAU = {"moco_cifar10": 0.1, "moco_imagenet100": 0.07, "moco_v2_imagenet": 0.2}
# Factor of the rate at the beginning of these epochs (B.2.1, B.2.2).
RATES = {
    "moco_imagenet100": {0: 1, 119: 1, 120: 0.1, 159: 0.1, 160: 0.01, 200: 0.001, 239: 0.001},
    "moco_v2_imagenet": {0: 1, 119: 1, 120: 0.1, 159: 0.1, 160: 0.01, 199: 0.01},
}
# Printed in Tables 3 and 5, and in the notebook.
SCORES = {
    "moco_cifar10": ("82.6%", "86.3%", "88.7%"),
    "moco_imagenet100": ("72.80%", "91.64%", "74.60%", "92.74%"),
    "moco_v2_imagenet": ("67.5%", "67.69%"),
    "quick_thought": ("77.51", "83.86%", "73.76", "80.95%"),
}
NYU = ["nyu_depth/contrastive", "nyu_depth/align_uniform"]  # tests/test_depth.py has the rest
QUICK_THOUGHT = [
    f"quick_thought/{name}"
    for name in ("contrastive", "contrastive_cr", "align_uniform", "unnormalized")
]
MOCO = [name for name in experiments.PRETRAIN if name not in (*NYU, *QUICK_THOUGHT)]
IMAGENET100 = ROOT / "experiments" / "imagenet100_classes.txt"


def test_names():
    expected = [f"{file}/{loss}" for file in SETTINGS for loss in ("contrastive", "align_uniform")]
    assert expected == MOCO and [*MOCO, *NYU, *QUICK_THOUGHT] == list(experiments.PRETRAIN)


@pytest.mark.parametrize("name", MOCO)
def test_settings_are_the_papers(name):
    file, variant = name.split("/")
    config = experiments.find(name)
    rule, queue = config.optimizer, config.moco
    found = (rule.batch_size, rule.epochs, rule.learning_rate, rule.weight_decay)
    assert (*found, queue.queue_size, queue.ema_decay, config.model.dim) == SETTINGS[file]
    assert (rule.optimizer, rule.momentum, rule.scaling) == ("sgd", 0.9, "none")
    assert config.model.name == ("resnet18" if file == "moco_cifar10" else "resnet50")
    assert config.model.head == ("moco_v2" if file == "moco_v2_imagenet" else "linear")
    assert config.name == name.replace("/", "_")
    loss = config.objective
    weights = (loss.contrastive_weight, loss.align_weight, loss.uniform_weight)
    if variant == "contrastive":
        assert weights == (1, 0, 0) and loss.contrastive_tau == TAU[file]
    else:
        assert weights == (0, 3, 1) and (loss.align_alpha, loss.uniform_t) == (2, 3)
        assert loss.uniform_intra_batch


# Wang & Isola, B.3 and Table 4: the loss, and whether features have unit norm in training.
QUICK_THOUGHT_LOSSES = {
    "contrastive": ((1, 0, 0), 0.075, True),
    "contrastive_cr": ((1, 0, 0), 0.05, True),
    "align_uniform": ((0, 0.9, 0.1), None, True),
    "unnormalized": ((1, 0, 0), 1, False),
}


@pytest.mark.parametrize("name", QUICK_THOUGHT)
def test_quick_thought_is_the_papers(name):
    config = experiments.find(name)
    rule, loss, model = config.optimizer, config.objective, config.model
    assert (rule.optimizer, rule.batch_size, rule.epochs, rule.clip_norm) == ("adam", 400, 1, 0.5)
    assert (rule.adam_betas, rule.adam_eps, rule.weight_decay) == ((0.9, 0.999), 1e-8, 0)
    schedule = make_schedule(rule, 100)
    assert [float(schedule(step)) for step in (0, 50, 99)] == pytest.approx([5e-4] * 3)
    assert (model.name, model.dim, model.embedding) == ("sentence_gru", 1200, 620)
    weights, tau, unit = QUICK_THOUGHT_LOSSES[name.partition("/")[2]]
    assert (loss.contrastive_weight, loss.align_weight, loss.uniform_weight) == weights
    assert tau is None or loss.contrastive_tau == tau
    assert tau is not None or (loss.align_alpha, loss.uniform_t) == (2, 5)
    assert model.unit_norm == unit


@pytest.mark.parametrize("file", RATES)
def test_rate_decays_at_the_papers_epochs(file):
    rule = experiments.find(f"{file}/contrastive").optimizer
    steps_per_epoch = 13
    schedule = make_schedule(rule, rule.epochs * steps_per_epoch)
    for epoch, factor in RATES[file].items():
        np.testing.assert_allclose(schedule(epoch * steps_per_epoch), 0.03 * factor, rtol=1e-6)


@pytest.mark.parametrize("file", [*SETTINGS, "quick_thought"])
def test_docstrings_say_command_time_and_score(file):
    text = importlib.import_module(f"experiments.{file}").__doc__
    assert f"python run.py pretrain {file}/" in text and f"python run.py probe {file}_" in text
    assert "Expected time" in text and "Expected score" in text and "Not measured here" in text
    assert all(score in text for score in SCORES[file])
    assert all(name in experiments.PRETRAIN for name in text.split() if name.startswith(f"{file}/"))


def test_classes_are_found_from_any_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    classes = experiments.find("moco_imagenet100/contrastive").data.classes
    assert read_classes(type(IMAGENET100)(classes)) == read_classes(IMAGENET100)


def test_mistakes_and_help(capsys):
    near = "did you mean 'moco_imagenet100/align_uniform'?"
    assert near in fails(capsys, "pretrain", "moco_imagenet100/align_unifrom")
    assert "moco_cifar10/contrastive" in fails(capsys, "pretrain", "nothing-like-it")
    assert "--epochs 0" in fails(capsys, "pretrain", "moco_cifar10/contrastive", "--epochs", "0")
    with pytest.raises(SystemExit):
        run_py.main(["pretrain", "--help"])
    text = "".join(capsys.readouterr().out.split())
    assert all(name in text for name in experiments.PRETRAIN)


def test_a_flag_overrides_and_the_rest_stays():
    config = run_py._parse(
        PretrainConfig, "pretrain", ["moco_cifar10/align_uniform", "--epochs", "7"], experiments
    )
    expected = experiments.find("moco_cifar10/align_uniform")
    assert config.optimizer.epochs == 7 and expected.optimizer.epochs == 200
    assert config.model == expected.model and config.objective == expected.objective


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """An image of noise for each class of ImageNet-100, and one class more; in both splits."""
    root, rng = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    for split in ("train", "val"):
        for wnid in (*read_classes(IMAGENET100), "n00000000"):
            folder = root / split / wnid
            folder.mkdir(parents=True)
            pixels = rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "0.png")
    return root


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "total"),
    [
        ("moco_cifar10/contrastive", 101),
        ("moco_imagenet100/align_uniform", 100),
        ("moco_v2_imagenet/contrastive", 101),
    ],
)
def test_two_steps_when_shrunk(name, total, images, monkeypatch, tmp_path):
    """With a small encoder, from another folder; of the 101 classes ImageNet-100 has 100."""
    monkeypatch.chdir(tmp_path)
    small = "--model small_cnn --width 0.1 --dim 4 --image-size 16 --batch-size 40 --epochs 1"
    few = "--queue-size 100 --devices 1 --log-every-steps 1 --dtype float32"
    places = ["--data-dir", str(images), "--cache-dir", str(tmp_path / "cache")]
    command = ["pretrain", name, *places, *small.split(), *few.split()]
    assert run_py.main(command) == 0
    folder = tmp_path / "runs" / name.replace("/", "_")
    assert runs.read_config(folder).objective == experiments.find(name).objective
    assert len(runs.load_data(folder).train) == total
    lines = runs.read_metrics(folder)
    assert [line["queue_filled"] for line in lines] == pytest.approx([0, 0.4])
    assert all(math.isfinite(line["loss"]) for line in lines)
    assert [line["chance"] for line in lines] == pytest.approx([math.log(101)] * 2)
