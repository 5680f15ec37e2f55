"""The command line as a user meets it: help, one clear line for a mistake, exit status.

`run_py` is the command line as a module; `fails(capsys, …)` gives the one line of a mistake.
"""

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from processes import ROOT, environment

import experiments
from hypersphere_jax import report, runs, training
from hypersphere_jax.config import PretrainConfig, Stopped

spec = importlib.util.spec_from_file_location("run_py", ROOT / "run.py")
run_py = importlib.util.module_from_spec(spec)
spec.loader.exec_module(run_py)

# The run `short` of tiny_runs, whose programs other tests have compiled.
TINY = ["--width", "0.1", "--dim", "3", "--epochs", "2", "--batch-size", "220", "--devices", "2"]
PARTS = {
    "data": ("list", "prepare", "prepare-text", "inspect", "show"),
    "bench": (
        *("step", "text", "together", "convolution", "augment"),
        *("data", "losses", "knn", "scaling", "probe"),
    ),
}


def fails(capsys, *arguments):
    """The one line on stderr of a command that a mistake ends."""
    assert run_py.main(list(arguments)) == 2, arguments
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: "), lines
    return lines[0]


def test_verbs(capsys):
    for arguments in ([], ["--help"], ["-h"]):
        assert run_py.main(arguments) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[0] for line in lines[2:]] == list(run_py.VERBS)
        assert all(len(line) <= 100 for line in lines)


def test_help_is_complete_and_readable(capsys):
    parts = [[verb, part] for verb, of in PARTS.items() for part in of]
    for words in [*([verb] for verb in run_py.VERBS), *parts]:
        with pytest.raises(SystemExit) as stop:
            run_py.main([*words, "--help"])
        text = capsys.readouterr().out
        assert stop.value.code == 0 and f"run.py {' '.join(words)}" in text and "--help" in text
        assert all(len(line) <= 100 for line in text.splitlines() if "│" in line), words
        assert all(part in text for part in PARTS.get(" ".join(words), ())), words
        if words == ["pretrain"]:
            assert all(name in "".join(text.split()) for name in experiments.PRETRAIN)


def test_every_option_says_what_it_does():
    """Each field of a config has its help, a string below it (a nested config has its fields')."""
    configs = (ROOT / "hypersphere_jax" / "config").glob("*.py")
    for file in [*configs, *(ROOT / "experiments").glob("*.py")]:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef) and node.name.endswith("Config"):
                for field, below in zip(node.body, [*node.body[1:], None], strict=True):
                    if isinstance(field, ast.AnnAssign) and "Config" not in ast.unparse(field):
                        text = getattr(getattr(below, "value", None), "value", "")
                        assert isinstance(text, str) and len(text) > 10, ast.unparse(field)


def test_mistakes(capsys, tmp_path):
    (tmp_path / "cut.zip").write_bytes(b"PK cut short")
    (tmp_path / "file").touch()
    nowhere, cut, file = (str(tmp_path / name) for name in ("nowhere", "cut.zip", "file"))
    for line, *said in (
        ("pretrian", "did you mean 'pretrain'"),
        ("pretrain --aling-weight 2", "--align-weight"),
        ("pretrain --epochs ten", "--epochs"),
        ("pretrain --model resnet9000", "small_alexnet"),
        ("pretrain --dim 1", "--dim 1:"),
        ("pretrain --loss nt_xent --loss-lam 1", "not nt_xent"),
        ("pretrain --align-weight -1", "loss weights"),
        ("pretrain --data digts", "did you mean 'digits'"),
        ("pretrain --seed -1", "--seed -1"),
        ("pretrain --width inf", "--width inf"),
        ("pretrain --name a/b", "plain folder name"),
        ("pretrain --fraction 2", "--fraction 2"),
        (f"pretrain --data {cut}", "cut.zip"),
        (f"pretrain --runs-dir {file} {' '.join(TINY)}", file, "Not a directory"),
        (
            "pretrain moco_imagenet100/align_unifrom",
            "did you mean 'moco_imagenet100/align_uniform'",
        ),
        ("pretrain nothing-like-it", "moco_cifar10/contrastive"),
        ("pretrain moco_cifar10/contrastive --epochs 0", "--epochs 0"),
        ("probe nowhere", "no run 'nowhere'"),
        ("probe x --devices 0", "--devices 0"),
        (f"metrics {tmp_path}", "no run"),
        ("metrics x --t inf", "--t inf"),
        (f"report {tmp_path}", "no run"),
        ("data inspect cifar01", "did you mean 'cifar10'"),
        (f"data show {nowhere}", "no file or folder"),
        ("data inspect random_bits", "--bits"),
        ("finetune", "run"),
        ("depth", "runs"),
        ("reproduce wang-isola/figure77", "did you mean"),
        ("export-npz nowhere --out a.npz", "no run 'nowhere'"),
        (f"import-torch {nowhere} --name a", nowhere),
        ("bench losses --sizes 1", "--sizes"),
    ):
        found = fails(capsys, *line.split())
        assert all(text in found for text in said), (line, found)


def test_a_flag_overrides_an_experiment_and_the_rest_stays():
    given = ["moco_cifar10/align_uniform", "--epochs", "7"]
    config = run_py._parse(PretrainConfig, "pretrain", given, experiments)
    expected = experiments.find("moco_cifar10/align_uniform")
    assert config.optimizer.epochs == 7 and expected.optimizer.epochs == 200
    assert config.model == expected.model and config.objective == expected.objective


def test_exit_status_of_what_ends_a_command(capsys, monkeypatch):
    for error, status, said in (
        (Stopped("saved: go on"), 0, "saved: go on"),
        (KeyboardInterrupt(), 0, "to go on"),
        (
            OSError(28, "No space left on device", "file"),
            2,
            "error: No space left on device (file)",
        ),
    ):

        def train(config, command, error=error):
            raise error

        monkeypatch.setattr(training, "train", train)
        assert run_py.main(["pretrain", "--devices", "2"]) == status
        assert said in capsys.readouterr().err
    monkeypatch.setattr(training, "train", lambda config, command: 1 / 0)
    with pytest.raises(ZeroDivisionError):  # a bug is told whole
        run_py.main(["pretrain", "--devices", "2"])


def test_from_training_to_report(capsys, tmp_path):
    a, places = str(tmp_path / "a"), ["--runs-dir", str(tmp_path)]
    assert run_py.main(["pretrain", "--name", "a", *places, *TINY]) == 0
    captured = capsys.readouterr()
    assert "step 12 of 12" in captured.err and f"probe {a}" in captured.out
    assert run_py.main(["probe", a, "--layer", "backbone", "--devices", "2"]) == 0
    table = capsys.readouterr().out
    scores = [runs.read_json(path)["top1"] for path in (tmp_path / "a" / "eval").glob("*.json")]
    assert len(scores) == 2 and all(f"{score:.2f}" in table for score in scores)
    assert max(map(len, table.splitlines())) <= 80
    assert run_py.main(["metrics", a, "--devices", "2"]) == 0
    table = capsys.readouterr().out
    found = runs.read_json(tmp_path / "a" / "eval" / "metrics-test.json")
    assert found["n"] == 397 and np.isfinite(found["align"])
    assert report.with_error(found["uniform"], found["uniform_standard_error"]) in table
    bounds = [f"{found[f'uniform_{name}']:.6f}" for name in ("optimum", "lower_bound")]
    assert table.index(bounds[0]) < table.index(bounds[1])  # as their columns stand
    assert table.index("its optimum") < table.index("bound at n")
    assert max(map(len, table.splitlines())) <= 80
    assert run_py.main(["report", a]) == 0
    page = Path(capsys.readouterr().out.strip())
    assert page == tmp_path / "a" / "report.html" and "knn" in page.read_text()
    # Nothing saved is lost by a mistake with the same folder.
    line = fails(capsys, "pretrain", "--name", "a", *places, *TINY, "--seed", "1")
    assert "seed: 0 -> 1" in line and "--name a-2" in line


def test_report_of_several_runs(capsys, monkeypatch):
    pages = []
    monkeypatch.setattr(runs, "find", lambda name: Path("runs") / name)
    monkeypatch.setattr(report, "sweep_report", lambda *given: pages.append(given) or given[1])
    assert run_py.main(["report", "a", "b", "--out", "page.html"]) == 0
    assert capsys.readouterr().out.strip() == "page.html"
    assert pages == [([Path("runs/a"), Path("runs/b")], "page.html", "Runs")]


@pytest.mark.slow
def test_a_pipe_that_nobody_reads():
    command = f"{sys.executable} run.py data inspect digits | head -1"
    options = {"cwd": ROOT, "env": environment(), "capture_output": True, "text": True}
    done = subprocess.run(command, shell=True, **options)
    assert done.stdout.startswith("train:") and not done.stderr
