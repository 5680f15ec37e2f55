"""The command line: help, invalid input, exit statuses, and the files that commands write."""

from unittest.mock import Mock

import numpy as np
import processes
import pytest
from jax.errors import JaxRuntimeError
from tiny_runs import parse_pretrain

import benchmarks
import hypersphere_jax
from hypersphere_jax import cli
from hypersphere_jax import configs as C
from hypersphere_jax.training import train as training
from hypersphere_jax.utils.files import write_json

PARTS = [f"data {part}" for part in ("list", "prepare", "prepare-text", "inspect", "show")]
PARTS += [f"bench {part}" for part in benchmarks.PARTS]


def status_of(line):
    """Return the exit status of a command line; tyro exits by itself."""
    try:
        return cli.main(line.split())
    except SystemExit as stop:
        return stop.code


@pytest.mark.parametrize("command", [*cli.COMMANDS, *PARTS])
def test_help_of_every_command(command, capsys):
    assert status_of(f"{command} --help") == 0
    captured = capsys.readouterr()
    assert command in captured.out
    assert captured.err == ""


@pytest.mark.parametrize("entry", [["run.py"], ["-m", "hypersphere_jax"]])
def test_entry_points(entry):
    done = processes.python(*entry, "--version")
    assert done.returncode == 0
    assert hypersphere_jax.__version__ in done.stdout


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("pretrian", "pretrain"),
        ("pretrain --aling-weight 2", "--align-weight"),
        ("probe a --protocol kn", "--protocol"),
        ("pretrain --data digts", "digits"),
        ("pretrain moco_cifar10/align_unifrom", "moco_cifar10/align_uniform"),
        ("reproduce wang-isola/figure77", "wang-isola/figure7"),
        ("pretrain --loss info_nce", "--loss"),
        ("pretrain --epochs many", "--epochs"),
        ("pretrain --dim " + "1" * 60, "dim"),
        ("pretrain --data a.zip b.zip", "b.zip"),
        ("finetune", "RUN"),
        ("export NAME", "--out"),
        ("import-torch FILE --name a/../b", "name"),
        ("probe nowhere", "nowhere"),
        ("data", "inspect"),
        ("data show --count 0", "count"),
        ("reproduce wang-isola/table3 --scale laptop", "scale"),
    ],
)
def test_invalid_lines_exit_with_status_2_and_a_name(line, named, capsys):
    """With the similar name, where one is misspelled."""
    assert status_of(line) == 2
    captured = capsys.readouterr()
    assert named in captured.err
    assert "Traceback" not in captured.err
    assert captured.out == ""


def test_flags_have_aliases_hyphens_and_underscores():
    flags = ["--lr=0.1", "--bs", "8", "--wd", "0", "--temperature", "0.2", "--eval_images", "all"]
    config = parse_pretrain(*flags, "--queue-size", "4", "--nesterov")
    numbers = {"learning_rate": 0.1, "batch_size": 8, "weight_decay": 0, "contrastive_tau": 0.2}
    assert config == C.PretrainConfig(**numbers, eval_images="all", queue_size=4, nesterov=True)
    probe = cli.parse(C.ProbeConfig, "probe", ["a", "b", "--layer", "fc7", "--protocol", "knn"])
    assert probe == C.ProbeConfig(("a", "b"), layers=("fc7",), protocols=("knn",))


def test_a_new_run_is_announced_with_a_similar_name(tmp_path, capsys):
    write_json(tmp_path / "flowers_long_run" / "config.json", {})
    config = C.PretrainConfig(name="flowers_long_rnu", runs_dir=str(tmp_path))
    cli.announce(config, 1400)
    line = capsys.readouterr().err
    assert "flowers_long_rnu" in line
    assert "flowers_long_run" in line
    assert "120" in line  # of 1,400 images each epoch, which are dropped


@pytest.mark.parametrize(
    ("error", "status", "named"),
    [
        (C.Stopped("saved: run it again"), 0, "saved: run it again"),
        (C.UserError("two\n lines"), 2, "two lines"),
        (OSError(28, "No space left", "file"), 2, "file"),
        (MemoryError("17 GiB"), 2, "17 GiB"),
        (JaxRuntimeError("RESOURCE_EXHAUSTED: of 9 GiB\ntrace"), 2, "9 GiB"),
        (JaxRuntimeError("FAILED_PRECONDITION: DNN library initialization failed."), 2, ""),
    ],
)
def test_errors_end_a_command_with_one_line(error, status, named, capsys, monkeypatch):
    monkeypatch.setattr(training, "train", Mock(side_effect=error))
    assert cli.main(["pretrain", "--devices", "2"]) == status
    (line,) = capsys.readouterr().err.splitlines()
    assert named in line


@pytest.mark.parametrize("bug", [ZeroDivisionError(), JaxRuntimeError("INTERNAL: else")])
def test_unexpected_errors_are_raised(bug, monkeypatch):
    monkeypatch.setattr(training, "train", Mock(side_effect=bug))
    with pytest.raises(type(bug)):
        cli.main(["pretrain", "--devices", "2"])


# Commands up to the option that names a file, and the endings that it takes.
OUTPUTS = (
    ("report a b --out", ".html"),
    ("data inspect digits --out", ".json"),
    ("data show digits --out", ".png"),
    ("metrics x.npy --out", ".json"),
    ("metrics x.npy --figure", ".png"),
    ("probe x.npz --out", ".csv"),
    ("features a --out", ".npz"),
    ("export a --out", ".safetensors"),
)


@pytest.mark.parametrize(("line", "ending"), OUTPUTS)
def test_no_file_of_the_users_is_overwritten(line, ending, tmp_path, capsys, monkeypatch):
    """Such a file is refused before any work: the runs of these lines do not exist."""
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.eye(3))
    for name in (f"mine{ending}", "mine", "mine.txt"):
        (tmp_path / name).write_text("of mine")
        assert cli.main([*line.split(), name]) == 2
        assert name in capsys.readouterr().err
        assert (tmp_path / name).read_text() == "of mine"
    (tmp_path / f"folder{ending}").mkdir()
    for place in (f"folder{ending}", f"mine.txt/x{ending}"):
        assert cli.main([*line.split(), place]) == 2
