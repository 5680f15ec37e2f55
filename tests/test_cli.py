"""The command line: help, invalid input, exit statuses, and the files that commands write."""

import logging
import pickle
import sys
from pathlib import Path
from unittest.mock import Mock

import processes
import pytest
from jax.errors import JaxRuntimeError
from tiny_runs import parse_pretrain

import benchmarks
import experiments
import hypersphere_jax
from hypersphere_jax import cli
from hypersphere_jax.configs import (
    Diverged,
    FinetuneConfig,
    PretrainConfig,
    ProbeConfig,
    Stopped,
    UserError,
)
from hypersphere_jax.training import train as training
from hypersphere_jax.utils.files import read_json, write_json

COMMANDS = "quickstart pretrain finetune probe metrics features depth reproduce data report bench"
COMMANDS = [*COMMANDS.split(), "import-torch", "export"]
PARTS = [f"data {part}" for part in ("list", "prepare", "prepare-text", "inspect", "show")]
PARTS += [f"bench {part}" for part in benchmarks.PARTS]
# The run `short` of tiny_runs, whose programs other tests have compiled.
SHORT = ["--width", "0.1", "--dim", "3", "--epochs", "2", "--batch-size", "220", "--devices", "2"]


def status_of(line):
    """Return the exit status of a command line; tyro exits by itself."""
    try:
        return cli.main(line if isinstance(line, list) else line.split())
    except SystemExit as stop:
        return stop.code


@pytest.mark.parametrize("command", [*COMMANDS, *PARTS])
def test_help_of_every_command(command, capsys):
    assert status_of(f"{command} --help") == 0
    captured = capsys.readouterr()
    assert command in captured.out and "--help" in captured.out and captured.err == ""


def test_overview_lists_the_commands(capsys):
    assert status_of("--help") == status_of([]) == 0
    words = capsys.readouterr().out.split()
    assert set(COMMANDS) <= set(words)


SCRIPT = "import sys; from hypersphere_jax.__main__ import main; sys.exit(main())"


@pytest.mark.parametrize("entry", [["run.py"], ["-m", "hypersphere_jax"], ["-c", SCRIPT]])
def test_entry_points_are_the_same_program(entry):
    done = processes.python(*entry, "--version")
    assert done.returncode == 0 and hypersphere_jax.__version__ in done.stdout
    done = processes.python(*entry, "pretrian")
    assert done.returncode == 2 and "pretrain" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("pretrian", "pretrain"),
        ("pretrain --aling-weight 2", "--align-weight"),
        ("pretrain moco_cifar10/contrastive --epoch 3", "--epochs"),
        ("probe a --protocol kn", "--protocol"),
        ("data insp", "inspect"),
        ("data show --cuont 3", "--count"),
        ("pretrain --data digts", "digits"),
        ("pretrain moco_cifar10/align_unifrom", "moco_cifar10/align_uniform"),
        ("reproduce wang-isola/figure77", "wang-isola/figure7"),
    ],
)
def test_unknown_names_exit_with_status_2_and_the_similar_name(line, named, capsys):
    assert status_of(line) == 2
    assert named in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("pretrain --loss supervised_contrastive", "--loss"),
        ("pretrain --epochs many", "--epochs"),
        ("pretrain --epochs 0", "epochs"),
        ("pretrain moco_cifar10/contrastive --epochs 0", "epochs"),
        ("pretrain --seed -1", "seed"),
        ("pretrain --decay-at 0.5 nan", "decay_at"),
        ("pretrain --loss nt_xent --loss-lam 1", "loss_lam"),
        ("pretrain --classifier-layer fc7", "supervised_weight"),
        ("pretrain --dim " + "1" * 60, "dim"),
        ("pretrain --data a.zip b.zip", "b.zip"),
        ("pretrain --config nowhere.yaml", "nowhere.yaml"),
        ("finetune", "RUN"),
        ("export NAME", "--out"),
        ("import-torch FILE --name a/../b", "name"),
        ("probe nowhere", "nowhere"),
        ("data", "inspect"),
        ("data show --count 0", "count"),
        ("bench losses --sizes 1", "sizes"),
        ("reproduce wang-isola/table3 --scale laptop", "scale"),
    ],
)
def test_invalid_values_exit_with_status_2_and_a_name(line, named, capsys):
    assert status_of(line) == 2
    captured = capsys.readouterr()
    assert named in captured.err and "Traceback" not in captured.err and captured.out == ""


def test_aliases_of_options():
    config = parse_pretrain(*["--lr", "0.1", "--bs", "8", "--wd", "0", "--temperature", "0.2"])
    assert (config.learning_rate, config.batch_size, config.weight_decay) == (0.1, 8, 0)
    assert config.contrastive_tau == 0.2
    probe = cli.parse(ProbeConfig, "probe", ["a", "b", "--layer", "fc7", "--protocol", "knn"])
    assert probe == ProbeConfig(("a", "b"), layers=("fc7",), protocols=("knn",))


def test_options_are_spelled_with_hyphens_or_underscores():
    expected = PretrainConfig(batch_size=8, eval_images="all", nesterov=True, unit_norm=True)
    flags = ("--eval-images", "all", "--nesterov")
    assert parse_pretrain("--batch_size", "8", *flags) == expected
    assert parse_pretrain("--batch-size=8", *flags) == expected
    rates = ["a", "--learning-rates", "0.1", "0.2", "--seed", "3"]
    tuned = cli.parse_run(FinetuneConfig, "finetune", rates, None)
    assert tuned == FinetuneConfig("a", learning_rates=(0.1, 0.2), seed=3)


def test_flags_override_an_experiment():
    name = "moco_cifar10/align_uniform"
    assert parse_pretrain(name, "--epochs", "7") == experiments.find(name).replace(epochs=7)


def test_a_new_run_is_announced_with_a_similar_name(tmp_path, capsys):
    for name in ("flowers_long_run", "birds"):
        write_json(tmp_path / name / "config.json", {})
    for name, similar in (("flowers_long_rnu", "flowers_long_run"), ("other", "")):
        config = PretrainConfig(name=name, runs_dir=str(tmp_path))
        cli.announce(config, 512)
        whole = capsys.readouterr().err
        assert str(tmp_path / name) in whole and similar in whole
        cli.announce(config, 1400)
        assert "120 of 1,400" in capsys.readouterr().err
    cli.announce(PretrainConfig(name="birds", runs_dir=str(tmp_path)), 1400)
    assert capsys.readouterr().err == ""


def test_log_messages_are_printed_once_while_a_command_runs(capsys, monkeypatch):
    logger = logging.getLogger("hypersphere_jax")
    before = (logger.level, logger.propagate, list(logger.handlers))

    def command(arguments):
        for _ in range(2):
            logger.warning("pets: %d left out", 2)

    monkeypatch.setitem(cli.COMMANDS, "probe", command)
    assert cli.main(["probe"]) == 0
    assert capsys.readouterr().err.count("pets: 2 left out") == 1
    assert (logger.level, logger.propagate, list(logger.handlers)) == before


@pytest.mark.parametrize(
    ("error", "status", "named"),
    [
        (Stopped("saved: run it again"), 0, "saved: run it again"),
        (UserError("two\n lines"), 2, "two lines"),
        (OSError(28, "No space left", "file"), 2, "file"),
        (MemoryError("17 GiB"), 2, "17 GiB"),
        (JaxRuntimeError("RESOURCE_EXHAUSTED: of 9 GiB\ntrace"), 2, "9 GiB"),
        (JaxRuntimeError("FAILED_PRECONDITION: DNN library initialization failed."), 2, "memory"),
    ],
)
def test_errors_end_a_command_with_one_line(error, status, named, capsys, monkeypatch):
    monkeypatch.setattr(training, "train", Mock(side_effect=error))
    assert cli.main(["pretrain", "--devices", "2"]) == status
    (line,) = capsys.readouterr().err.splitlines()
    assert named in line and line.startswith("error: ") == (status == 2)


@pytest.mark.parametrize("bug", [ZeroDivisionError(), JaxRuntimeError("INTERNAL: else")])
def test_unexpected_errors_are_raised(bug, monkeypatch):
    monkeypatch.setattr(training, "train", Mock(side_effect=bug))
    with pytest.raises(type(bug)):
        cli.main(["pretrain", "--devices", "2"])


def test_errors_survive_pickling():
    for error in (UserError("no such thing"), Diverged("loss nan", "take a lower rate")):
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error) and vars(again) == vars(error)
        assert str(again) == str(error)


def test_commands_of_the_repository_in_an_installed_package(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(cli, "ROOT", tmp_path)
    lines = ("quickstart", "reproduce", "bench losses", "pretrain moco_cifar10/contrastive")
    for line in lines:
        assert cli.main(line.split()) == 2
        assert "repository" in capsys.readouterr().err
    assert status_of("pretrain --help") == 0
    assert "moco_cifar10" not in capsys.readouterr().out
    assert parse_pretrain("--epochs", "3").epochs == 3


@pytest.mark.parametrize(
    ("called", "program"),
    [
        ("run.py", "python run.py"),
        ("/x y/run.py", "python '/x y/run.py'"),
        ("/x/bin/hypersphere-jax", "hypersphere-jax"),
        ("/x/hypersphere_jax/__main__.py", "python -m hypersphere_jax"),
    ],
)
def test_usage_and_records_name_the_program_as_it_was_called(called, program, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [called, "probe", "a b"])
    assert cli.typed() == f"{program} probe 'a b'"
    assert cli.main(["--help"]) == 0
    assert f"{program} COMMAND" in capsys.readouterr().out


@pytest.mark.slow
def test_from_training_to_report(capsys, tmp_path):
    folder = tmp_path / "a"
    run, where = str(folder), ["--runs-dir", str(tmp_path)]
    assert cli.main(["pretrain", "--name", "a", *where, *SHORT]) == 0
    assert f"probe {run}" in capsys.readouterr().out
    assert cli.main(["probe", run, "--protocols", "knn", "--devices", "2"]) == 0
    score = read_json(folder / "eval" / "knn5-output.json")["top1"]
    assert f"{score:.2f}" in capsys.readouterr().out
    page = (folder / "report.html").read_text()
    assert page.count("data:image/png") == 3 and f"{score:.2f}" in page
    assert cli.main(["metrics", run, "--devices", "2"]) == 0
    table = capsys.readouterr().out
    result = read_json(folder / "eval" / "metrics-test.json")
    for name in ("uniform_optimum", "uniform_lower_bound"):
        assert f"{result[name]:.6f}" in table
    assert cli.main(["report", run]) == 0
    assert Path(capsys.readouterr().out.strip()) == folder / "report.html"
    # Another run in the same folder is refused.
    assert cli.main(["pretrain", "--name", "a", *where, "--seed", "1"]) == 2
    assert "seed: 0 -> 1" in capsys.readouterr().err
