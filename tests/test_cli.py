"""The command line as a user meets it: help, one clear line for a mistake, exit status."""

import ast
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
spec = importlib.util.spec_from_file_location("run_py", ROOT / "run.py")
run_py = importlib.util.module_from_spec(spec)
spec.loader.exec_module(run_py)

TINY = ["--width", "0.1", "--dim", "3", "--epochs", "2", "--batch-size", "200", "--devices", "2"]


def fails(capsys, *arguments):
    """The one line on stderr of a command that a mistake ends."""
    assert run_py.main(list(arguments)) == 2
    captured = capsys.readouterr()
    lines = captured.err.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: "), captured.err
    assert "Traceback" not in captured.err
    return lines[0]


def test_verbs(capsys):
    for arguments in ([], ["--help"], ["-h"]):
        assert run_py.main(arguments) == 0
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == 2 + len(run_py.VERBS)
        assert all(len(line) <= 100 for line in lines)
        assert all(line.split()[0] in run_py.VERBS for line in lines[2:])


@pytest.mark.parametrize("verb", run_py.VERBS)
def test_help(verb, capsys):
    with pytest.raises(SystemExit) as stop:
        run_py.main([verb, "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert f"run.py {verb}" in text and "--help" in text
    # Every option of every group has its line of help.
    assert all(len(line) <= 100 for line in text.splitlines() if "│" in line)


CONFIGS = [*(ROOT / "hypersphere_jax" / "config").glob("*.py"), ROOT / "experiments/quickstart.py"]


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.stem)
def test_every_option_says_what_it_does(file):
    """Each field of a config has its help, a string below it (a nested config has its fields')."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ClassDef) and node.name.endswith("Config"):
            for field, below in zip(node.body, [*node.body[1:], None], strict=True):
                if isinstance(field, ast.AnnAssign) and "Config" not in ast.unparse(field):
                    text = getattr(getattr(below, "value", None), "value", "")
                    assert isinstance(text, str) and len(text) > 10, ast.unparse(field)


def test_mistakes(capsys, tmp_path):
    assert "did you mean 'pretrain'" in fails(capsys, "pretrian")
    assert "--align-weight" in fails(capsys, "pretrain", "--aling-weight", "2")
    assert "--epochs" in fails(capsys, "pretrain", "--epochs", "ten")
    assert "small_alexnet" in fails(capsys, "pretrain", "--model", "resnet9000")
    assert "--dim 1:" in fails(capsys, "pretrain", "--dim", "1")
    assert "not nt_xent" in fails(capsys, "pretrain", "--loss", "nt_xent", "--loss-lam", "1")
    assert "loss weights" in fails(capsys, "pretrain", "--align-weight", "-1")
    assert "did you mean 'digits'" in fails(capsys, "pretrain", "--data", "digts")
    assert "no run 'nowhere'" in fails(capsys, "probe", "nowhere")
    assert "no run" in fails(capsys, "metrics", str(tmp_path))
    assert "no run" in fails(capsys, "report", str(tmp_path))
    assert "--seed -1" in fails(capsys, "pretrain", "--seed", "-1")
    assert "--width inf" in fails(capsys, "pretrain", "--width", "inf")
    assert "--devices 0" in fails(capsys, "probe", "x", "--devices", "0")
    assert "--t inf" in fails(capsys, "metrics", "x", "--t", "inf")
    assert "plain folder name" in fails(capsys, "pretrain", "--name", "a/b")


def test_folder_that_cannot_be_written(capsys, tmp_path):
    file = tmp_path / "file"
    file.touch()
    line = fails(capsys, "pretrain", "--runs-dir", str(file), *TINY)
    assert str(file) in line and "Not a directory" in line


def test_from_training_to_report(capsys, tmp_path):
    runs_dir = ["--runs-dir", str(tmp_path)]
    assert run_py.main(["pretrain", "--name", "a", *runs_dir, *TINY]) == 0
    captured = capsys.readouterr()
    assert "step 14 of 14" in captured.err and f"probe {tmp_path / 'a'}" in captured.out
    assert run_py.main(["probe", str(tmp_path / "a"), "--layer", "backbone", "--devices", "2"]) == 0
    table = capsys.readouterr().out
    assert "lbfgs" in table and "knn" in table and "backbone" in table
    assert max(map(len, table.splitlines())) <= 80
    assert run_py.main(["metrics", str(tmp_path / "a"), "--devices", "2"]) == 0
    table = capsys.readouterr().out
    found = json.loads((tmp_path / "a" / "eval" / "metrics-test.json").read_text())
    assert f"{found['uniform']:.3f}" in table and f"{found['uniform_optimum']:.6f}" in table
    assert max(map(len, table.splitlines())) <= 80
    assert run_py.main(["report", str(tmp_path / "a")]) == 0
    page = Path(capsys.readouterr().out.strip())
    assert page == tmp_path / "a" / "report.html" and "knn" in page.read_text()
    # Nothing saved is lost by a mistake with the same folder.
    line = fails(capsys, "pretrain", "--name", "a", *runs_dir, *TINY, "--seed", "1")
    assert "seed: 0 -> 1" in line and "--name a-2" in line
    assert np.isfinite(found["align"])


@pytest.mark.parametrize("part", ["list", "prepare", "inspect", "show"])
def test_help_of_data(part, capsys):
    with pytest.raises(SystemExit) as stop:
        run_py.main(["data", part, "--help"])
    assert stop.value.code == 0 and f"run.py data {part}" in capsys.readouterr().out


def test_mistakes_about_data(capsys, tmp_path):
    assert "did you mean 'cifar10'" in fails(capsys, "data", "inspect", "cifar01")
    assert "no file or folder" in fails(capsys, "data", "show", str(tmp_path / "nothing"))
    assert "--bits" in fails(capsys, "data", "inspect", "random_bits")
    assert "--fraction 2" in fails(capsys, "pretrain", "--fraction", "2")
    (tmp_path / "cut.zip").write_bytes(b"PK cut short")
    assert "cut.zip" in fails(capsys, "pretrain", "--data", str(tmp_path / "cut.zip"))


def test_a_pipe_that_nobody_reads():
    command = f"{sys.executable} {ROOT / 'run.py'} data inspect digits | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.startswith("train:") and not done.stderr
