"""The scripts of examples/, with small settings."""

import re
import runpy

import jax
import pytest
from processes import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture
def run(capsys):
    """Return a function from an example to its result and its output."""

    def run(name, *arguments, **options):
        main = runpy.run_path(str(ROOT / "examples" / f"{name}.py"))["main"]
        with jax.numpy_rank_promotion("allow"):  # the suite forbids it
            result = main(*arguments, **options)
        return result, capsys.readouterr().out

    return run


def test_own_training_loop_is_the_same_on_one_device_and_on_four(run):
    last, printed = run("own_training_loop", 8, devices=1)
    assert last < float(re.search(r"step 0: loss (.*)", printed)[1]) - 0.3
    assert run("own_training_loop", 8, devices=4)[0] == pytest.approx(last, abs=1e-4)


def test_probe_features(run):
    _, printed = run("probe_features")
    numbers = dict(re.findall(r"^([\w-]+): (-?[\d.]+)", printed, re.MULTILINE))
    assert float(numbers["linear"]) > 80 and float(numbers["5-NN"]) > 80  # chance: 10%


def test_use_encoder(run, tmp_path):
    _, printed = run("use_encoder", tmp_path, epochs=2)
    assert (tmp_path / "encoder" / "weights.safetensors").is_file()
    assert float(re.search(r"5-NN: ([\d.]+)%", printed)[1]) > 70  # chance: 10%


def test_bring_your_own_resumes(run, tmp_path):
    run("bring_your_own", tmp_path, epochs=2)
    log = (tmp_path / "own" / "metrics.jsonl").read_text()
    run("bring_your_own", tmp_path, epochs=2)  # nothing is left to do
    assert (tmp_path / "own" / "metrics.jsonl").read_text() == log
