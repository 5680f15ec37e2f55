"""The command line as a user meets it: help, clear errors, exit status."""

from pathlib import Path
from unittest.mock import Mock

import pytest

import experiments
from hypersphere_jax import cli, report
from hypersphere_jax.config import PretrainConfig, Stopped
from hypersphere_jax.files import read_json
from hypersphere_jax.training import loop

# The run `short` of tiny_runs, whose programs other tests have compiled.
TINY = ["--width", "0.1", "--dim", "3", "--epochs", "2", "--batch-size", "220", "--devices", "2"]
PARTS = {
    "data": "list prepare prepare-text inspect show",
    "bench": "step text vmapped convolution augment data losses knn scaling probe",
}


def fails(capsys, *arguments):
    """The one line on stderr of a command with invalid input."""
    assert cli.main(list(arguments)) == 2, arguments
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: "), lines
    return lines[0]


def test_help_is_complete_and_readable(capsys):
    assert cli.main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:]] == list(cli.VERBS)
    parts = [[verb, part] for verb, of in PARTS.items() for part in of.split()]
    for words in [*([verb] for verb in cli.VERBS), *parts]:
        with pytest.raises(SystemExit) as stop:
            cli.main([*words, "--help"])
        text = capsys.readouterr().out
        assert stop.value.code == 0 and f"run.py {' '.join(words)}" in text and "--help" in text
        assert all(part in text for part in PARTS.get(" ".join(words), "").split()), words


def test_invalid_input(capsys):
    for line, said in (
        ("pretrian", "did you mean 'pretrain'"),
        ("pretrain --loss nt_xent --loss-lam 1", "not nt_xent"),
        ("pretrain --data digts", "did you mean 'digits'"),
        ("pretrain moco_imagenet100/align_unifrom", "mean 'moco_imagenet100/align_uniform'"),
        ("pretrain moco_cifar10/contrastive --epochs 0", "--epochs 0"),
        ("probe nowhere", "no run 'nowhere'"),
        ("reproduce wang-isola/figure77", "did you mean 'wang-isola/figure7'"),
        ("reproduce wang-isola/table3 --scale laptop", "no wang-isola/table3 at --scale laptop"),
        ("bench losses --sizes 1", "--sizes"),
    ):
        assert said in fails(capsys, *line.split()), line
    with pytest.raises(SystemExit) as stop:  # tyro's own
        cli.main(["pretrain", "--aling-weight", "2"])
    assert stop.value.code == 2 and "--align-weight" in capsys.readouterr().err


def test_a_flag_overrides_an_experiment_and_the_rest_stays():
    name = "moco_cifar10/align_uniform"
    config = cli._parse(PretrainConfig, "pretrain", [name, "--epochs", "7"])
    expected = experiments.find(name)
    assert config.optimizer.epochs == 7 and expected.optimizer.epochs == 200
    assert config.model == expected.model and config.objective == expected.objective


def test_exit_status_of_what_ends_a_command(capsys, monkeypatch):
    for error, status, said in (
        (Stopped("saved: go on"), 0, "saved: go on"),
        (KeyboardInterrupt(), 0, "to go on"),
        (OSError(28, "No space left", "file"), 2, "error: No space left (file)"),
    ):
        monkeypatch.setattr(loop, "train", Mock(side_effect=error))
        assert cli.main(["pretrain", "--devices", "2"]) == status
        assert said in capsys.readouterr().err
    monkeypatch.setattr(loop, "train", Mock(side_effect=ZeroDivisionError))
    with pytest.raises(ZeroDivisionError):  # a bug is told whole
        cli.main(["pretrain", "--devices", "2"])


def test_from_training_to_report(capsys, tmp_path):
    a, places = str(tmp_path / "a"), ["--runs-dir", str(tmp_path)]
    assert cli.main(["pretrain", "--name", "a", *places, *TINY]) == 0
    captured = capsys.readouterr()
    assert "step 12 of 12" in captured.err and f"probe {a}" in captured.out
    assert cli.main(["probe", a, "--protocols", "knn", "--devices", "2"]) == 0
    score = read_json(tmp_path / "a" / "eval" / "knn5-output.json")["top1"]
    assert f"{score:.2f}" in capsys.readouterr().out
    assert cli.main(["metrics", a, "--devices", "2"]) == 0
    table = capsys.readouterr().out
    result = read_json(tmp_path / "a" / "eval" / "metrics-test.json")
    assert report.with_error(result["uniform"], result["uniform_standard_error"]) in table
    bounds = [f"{result[f'uniform_{name}']:.6f}" for name in ("optimum", "lower_bound")]
    assert table.index(bounds[0]) < table.index(bounds[1])  # as their columns
    assert cli.main(["report", a]) == 0
    page = Path(capsys.readouterr().out.strip())
    assert page == tmp_path / "a" / "report.html" and "knn" in page.read_text()
    # Another run in the same folder is refused.
    line = fails(capsys, "pretrain", "--name", "a", *places, *TINY, "--seed", "1")
    assert "seed: 0 -> 1" in line and "choose another --name" in line
