"""Files of options: `--config FILE`, and the options of an existing run."""

import json

import pytest
from tiny_runs import parse_pretrain

import experiments
from hypersphere_jax import cli
from hypersphere_jax.configs import FinetuneConfig, PretrainConfig, UserError, to_dict

OPTIONS = {"name": "mine", "model": "resnet18", "learning_rate": 1e-2, "decay_at": [0.5, 1]}
OPTIONS |= {"adam_betas": [0.8, 0.9], "nesterov": True, "devices": None, "dim": 128}
YAML = """
# Comments are allowed.
name: mine
model: resnet18
learning-rate: 1e-2
decay_at: [0.5, 1]
adam_betas:
  - 0.8
  - 9.0e-1
nesterov: true
devices: null
dim: 128
"""


def write(folder, text, name="options.yaml"):
    file = folder / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(file)


@pytest.mark.parametrize(
    "text",
    [YAML, json.dumps(OPTIONS), b"\xef\xbb\xbf" + YAML.encode(), YAML.replace("\n", "\r\n")],
    ids=["yaml", "json", "byte order mark", "CRLF"],
)
def test_flags_override_a_file(text, tmp_path):
    file = write(tmp_path, text)
    assert parse_pretrain("--config", file) == PretrainConfig(**OPTIONS)
    config = parse_pretrain("--dim", "16", f"--config={file}", "--lr", "1")
    assert config == PretrainConfig(**OPTIONS | {"dim": 16, "learning_rate": 1.0})


def test_a_file_overrides_an_experiment(tmp_path):
    name = "moco_cifar10/align_uniform"
    config = parse_pretrain(name, "--config", write(tmp_path, "epochs: 7"), "--seed=2")
    assert config == experiments.find(name).replace(epochs=7, seed=2)


@pytest.mark.parametrize("run", [[], ["other"]])
def test_a_file_of_a_finetuning(run, tmp_path):
    text = "learning_rates: [0.1, 0.2]\nkeep-last: 5\n"
    file = write(tmp_path, text if run else f"{text}run: mine")
    arguments = [*run, "--config", file, "--seed", "3"]
    config = cli.parse_run(FinetuneConfig, "finetune", arguments, None)
    assert (config.run, config.seed) == ("other" if run else "mine", 3)
    assert (config.learning_rates, config.keep_last) == ((0.1, 0.2), 5)


def test_flags_complete_a_file(tmp_path):
    file = write(tmp_path, "data: random_bits\nqueue_size: 8\nema_decay: 0.5")
    config = parse_pretrain("--config", file, "--bits", "4", "--queue-size", "16")
    assert (config.data, config.bits, config.queue_size) == ("random_bits", 4, 16)
    with pytest.raises(UserError, match="bits"):
        parse_pretrain("--config", file)


def test_the_record_of_a_run_is_a_file_of_options(short_run):
    file = short_run / "config.json"
    recorded = json.loads(file.read_text())["config"]
    assert to_dict(parse_pretrain("--config", str(file))) == recorded
    again = parse_pretrain("--config", str(file), "--epochs=7", "--data", "cifar10")
    assert to_dict(again) == recorded | {"data": "cifar10", "epochs": 7}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("epohcs: 3", "epohcs.*epochs"),
        ("1: 2", "1"),
        ("epochs: ten", "epochs"),
        ("epochs: 1.5", "epochs"),
        ("epochs: true", "epochs"),
        ("epochs: null", "epochs"),
        ("epochs: 0", "epochs"),
        ("epochs: {a: 1}", "epochs"),
        ("learning_rate: [1]", "learning_rate"),
        ("learning_rate: .nan", "learning_rate"),
        ("resume: yes", "resume"),
        ("adam_betas: [0.5]", "adam_betas"),
        ("decay_at: 0.5", "decay_at"),
        ("model: resnet99", "model"),
        ("a: [1\nb: 2", "options.yaml"),
        ("name: 2026-13-45", "options.yaml"),
        ("- epochs", "options.yaml"),
        ("[" * 20_000, "options.yaml"),
        ("", "options.yaml"),
        (b"name: \xff", "options.yaml"),
    ],
)
def test_invalid_files_are_refused(text, named, tmp_path):
    with pytest.raises(UserError, match=named) as error:
        parse_pretrain("--config", write(tmp_path, text))
    assert "\n" not in str(error.value)


def test_missing_files_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"nowhere\.yaml"):
        parse_pretrain("--config", str(tmp_path / "nowhere.yaml"))
