"""The command line as a user meets it: help, clear errors, exit status."""

import logging
import os
import pickle
from importlib import metadata
from pathlib import Path
from unittest.mock import Mock

import pytest
from jax.errors import JaxRuntimeError

import experiments
import hypersphere_jax
from hypersphere_jax import cli, tables, verbs
from hypersphere_jax.configs import (
    Diverged,
    PretrainConfig,
    ProbeConfig,
    RuntimeConfig,
    Stopped,
    UserError,
    to_dict,
)
from hypersphere_jax.files import read_json, write_json
from hypersphere_jax.training import loop, sharding

# The run `short` of tiny_runs, whose programs other tests have compiled.
TINY = ["--width", "0.1", "--dim", "3", "--epochs", "2", "--batch-size", "220", "--devices", "2"]
PARTS = {
    "data": "list prepare prepare-text inspect show",
    "bench": "step loop text vmapped convolution augment data losses knn scaling probe",
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
    assert [line.split()[0] for line in lines[3:]] == list(cli.VERBS)
    parts = [[verb, part] for verb, of in PARTS.items() for part in of.split()]
    for words in [*([verb] for verb in cli.VERBS), *parts]:
        with pytest.raises(SystemExit) as stop:
            cli.main([*words, "--help"])
        text = capsys.readouterr().out
        assert stop.value.code == 0 and f"run.py {' '.join(words)}" in text and "--help" in text
        assert all(part in text for part in PARTS.get(" ".join(words), "").split()), words


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("train", "pretrain"),
        ("pretrain --aling-weight 2", "--align-weight"),
        ("pretrain --loss supervised_contrastive", "supervised_contrastive"),
        ("pretrain --epochs many", "many"),
        ("pretrain --data a.zip b.zip", "b.zip"),
        ("export NAME", "--out"),
        ("finetune", "RUN"),
        ("data", "inspect"),
        ("data insp", "inspect"),
        ("data show --siez 3", "--siez"),
    ],
)
def test_wrong_options_exit_with_status_2_and_a_name(line, named, capsys):
    try:
        status = cli.main(line.split())
    except SystemExit as stop:
        status = stop.code
    assert status == 2
    assert named in capsys.readouterr().err


def test_synonyms_of_flags():
    config = cli._parse(PretrainConfig, "pretrain", ["--lr", "0.1", "--bs", "8", "--wd", "0"])
    optimizer = config.optimizer
    assert (optimizer.learning_rate, optimizer.batch_size, optimizer.weight_decay) == (0.1, 8, 0)


def test_a_new_run_is_told_with_the_name_that_may_be_meant(tmp_path, capsys):
    for name in ("pets", "birds-1"):
        write_json(tmp_path / name / "config.json", {})
    for name, hint in (("pest", "; did you mean 'pets'?"), ("birds-2", ""), ("pets", None)):
        for samples, left in (
            (512, ""),
            (1400, " of whole batches: 120 of the 1,400 images sit out"),
        ):
            verbs._say_if_new(PretrainConfig(name=name, runs_dir=str(tmp_path)), samples)
            left += " each time" if left else ""
            line = f"new run {tmp_path / name}: digits, small_cnn, 200 epochs{left}{hint}\n"
            assert capsys.readouterr().err == ("" if hint is None else line)


def test_what_is_logged_is_a_line_without_a_prefix(capsys, monkeypatch):
    logger = logging.getLogger("hypersphere_jax")
    before = logger.level, logger.propagate, list(logger.handlers)

    def verb(parse):
        logger.info("text is prepared")
        for folder in ("", f"{os.getcwd()}/"):
            logger.warning("%spets: %d left out", folder, 2)

    monkeypatch.setitem(cli.VERBS, "probe", verb)
    assert cli.main(["probe"]) == 0
    assert capsys.readouterr().err == "text is prepared\nwarning: pets: 2 left out\n"
    assert (logger.level, logger.propagate, list(logger.handlers)) == before


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    version = metadata.version
    line = f"hypersphere_jax {hypersphere_jax.__version__}, jax {version('jax')}, Python 3."
    assert capsys.readouterr().out.startswith(line)


@pytest.mark.parametrize(
    ("option", "value", "others"),
    [
        ("batch_size", 0, {}),
        ("fold", 3, {"folds": 2}),
        ("warmup_epochs", 300, {}),
        ("channels", 2, {}),
        ("bn_groups", 4, {"batch_norm": "sync"}),
        ("subset_size", 9, {}),
        ("loss_lam", 1, {"loss": "nt_xent"}),
    ],
)
def test_errors_name_options_as_their_user_writes_them(option, value, others, capsys):
    options = {option: value, **others}
    with pytest.raises(UserError) as error:
        PretrainConfig(**options)
    assert f"{option}=" in str(error.value) and "--" not in str(error.value)
    flags = [f"--{name.replace('_', '-')}={given}" for name, given in options.items()]
    assert cli.main(["pretrain", *flags]) == 2
    line = capsys.readouterr().err
    assert flags[0].partition("=")[0] in line and "=" not in line


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
        ("bench losses --sizes 1", "sizes"),
        ("data show --count 0", "--count 0"),
        ("pretrain --batch-size 1", "--batch-size 1"),
        ("pretrain --seed -1", "--seed -1"),
        ("pretrain --decay-at 0.5 nan", "--decay-at 0.5 nan"),
        ("pretrain --dim " + "1" * 60, "1: must be in [2, 1e6]"),
        ("pretrain --classifier-layer fc7", "--supervised-weight"),
        ("import-torch FILE --name a/../b", "--name 'a/../b'"),
        ("probe nowhere\x1b[2J\udcff", r"no run 'nowhere\x1b[2J\udcff'"),
        ("probe \u2029nowhere", r"no run '\u2029nowhere'"),
        ("nowhere\x1b[2J" + "x" * 5000, r"error: no verb 'nowhere\x1b[2Jx"),
    ):
        answer = fails(capsys, *line.split(" "))
        assert said in answer and len(answer) <= 1000, line[:80]
    for flag in ("--out", "--recipe", "--name", "--data", "--runs-dir"):
        assert f"{flag} '': give a value" in fails(capsys, "pretrain", flag, "")
    assert "probe '': give a value" in fails(capsys, "probe", "")
    table3 = ("reproduce", "wang-isola/table3", "--dry-run")
    assert "--out '': give a value" in fails(capsys, *table3, "--out", "")  # not "."
    with pytest.raises(UserError, match=r"^RUNS a '': must be text"):
        ProbeConfig(("a", ""))
    assert r"nor any other in a\nb:" in fails(capsys, "probe", "x", "--runs-dir", "a\nb")


def test_a_flag_overrides_an_experiment_and_the_rest_stays():
    name = "moco_cifar10/align_uniform"
    config = cli._parse(PretrainConfig, "pretrain", [name, "--epochs", "7"])
    expected = experiments.find(name)
    assert config.epochs == 7 and expected.epochs == 200
    assert config.model == expected.model and config.objective == expected.objective


def test_exit_status_of_what_ends_a_command(capsys, monkeypatch):
    for error, status, said in (
        (Stopped("saved: go on"), 0, "saved: go on"),
        (OSError(28, "No space left", "file"), 2, "error: No space left (file)"),
        (MemoryError("17 GiB"), 2, "error: out of memory: 17 GiB: give less at a time, such as a"),
        (JaxRuntimeError("RESOURCE_EXHAUSTED: of 9 GiB\ntrace"), 2, "of 9 GiB: give less at"),
        (
            JaxRuntimeError("FAILED_PRECONDITION: DNN library initialization failed."),
            2,
            "where other processes hold a GPU's memory, end them, or start each with its share",
        ),
    ):
        monkeypatch.setattr(loop, "train", Mock(side_effect=error))
        assert cli.main(["pretrain", "--devices", "2"]) == status
        assert said in capsys.readouterr().err
    for bug in (ZeroDivisionError(), JaxRuntimeError("INTERNAL: else")):  # is told whole
        monkeypatch.setattr(loop, "train", Mock(side_effect=bug))
        with pytest.raises(type(bug)):
            cli.main(["pretrain", "--devices", "2"])


def test_errors_reach_other_processes_whole():
    for error in (UserError("no such thing"), Diverged("loss nan", "take a lower rate")):
        other = pickle.loads(pickle.dumps(error))
        assert type(other) is type(error) and vars(other) == vars(error)
        assert str(other) == str(error) in ("no such thing", "loss nan: take a lower rate")


@pytest.mark.slow
def test_from_training_to_report(capsys, tmp_path):
    a, places = str(tmp_path / "a"), ["--runs-dir", str(tmp_path)]
    assert cli.main(["pretrain", "--name", "a", *places, *TINY]) == 0
    captured = capsys.readouterr()
    assert "step 12 of 12" in captured.err and f"probe {a}" in captured.out
    assert cli.main(["probe", a, "--protocols", "knn", "--devices", "2"]) == 0
    score = read_json(tmp_path / "a" / "eval" / "knn5-output.json")["top1"]
    captured, page = capsys.readouterr(), tmp_path / "a" / "report.html"
    assert f"{score:.2f}" in captured.out and f"page: {page}" in captured.err
    assert page.read_text().count("data:image/png") == 3 and "knn5-output" in page.read_text()
    assert cli.main(["metrics", a, "--devices", "2"]) == 0
    table = capsys.readouterr().out
    result = read_json(tmp_path / "a" / "eval" / "metrics-test.json")
    assert tables.with_error(result["uniform"], result["uniform_standard_error"]) in table
    bounds = [f"{result[f'uniform_{name}']:.6f}" for name in ("optimum", "lower_bound")]
    assert table.index(bounds[0]) < table.index(bounds[1])  # as their columns
    assert cli.main(["report", a]) == 0
    page = Path(capsys.readouterr().out.strip())
    assert page == tmp_path / "a" / "report.html" and "knn" in page.read_text()
    # Another run in the same folder is refused.
    assert cli.main(["pretrain", "--name", "a", *places, "--seed", "1"]) == 2
    options, line = capsys.readouterr().err.strip().splitlines()
    assert options == f"a: options as recorded in {a}/config.json"
    assert "(seed: 0 -> 1)" in line and "choose another --name" in line


def test_compiled_programs_are_kept_where_the_run_keeps_them(tmp_path, monkeypatch):
    kept = []
    monkeypatch.setattr(sharding, "keep_compiled", kept.append)
    config = PretrainConfig(cache_dir="elsewhere")
    session = {"device": {"count": 1}}
    record = {"config": to_dict(config), "data_digest": "", "sessions": [session]}
    write_json(tmp_path / "a" / "config.json", record)
    verbs._keep_compiled(["a"], str(tmp_path))
    verbs._keep_compiled(["features.npz"], str(tmp_path))
    assert kept == ["elsewhere", RuntimeConfig.cache_dir]
