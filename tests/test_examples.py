"""The scripts of examples/: each does what it says, with small settings."""

import re
import runpy

import jax
import pytest
from processes import ROOT


def main_of(name):
    return runpy.run_path(str(ROOT / "examples" / f"{name}.py"))["main"]


@pytest.fixture(autouse=True)
def a_users_jax():
    """Which promotes ranks; the suite forbids it."""
    with jax.numpy_rank_promotion("allow"):
        yield


@pytest.mark.slow
def test_own_training_loop_is_the_same_on_one_device_and_on_four(capsys):
    main = main_of("own_training_loop")
    one = main(8, devices=1)
    first = float(re.search(r"step 0: loss (.*)", capsys.readouterr().out)[1])
    assert one < first - 0.3  # it learns
    assert main(8, devices=4) == pytest.approx(one, abs=1e-4)


@pytest.mark.slow
def test_probe_features(capsys):
    main_of("probe_features")()
    numbers = dict(re.findall(r"^([\w-]+): (-?[\d.]+)", capsys.readouterr().out, re.MULTILINE))
    assert numbers["uniform_optimum"] == "-3.752"  # as in the README, of 32 dimensions
    assert float(numbers["uniform"]) > -3.752 and 1 < float(numbers["effective_rank"]) < 32
    assert float(numbers["linear"]) > 80 and float(numbers["5-NN"]) > 80  # of ten classes


@pytest.mark.slow
def test_use_encoder(tmp_path, capsys):
    main_of("use_encoder")(tmp_path, epochs=2)
    assert (tmp_path / "encoder" / "weights.safetensors").is_file()
    printed = capsys.readouterr().out
    assert "(1797, 32) (1797, 512)" in printed
    assert float(re.search(r"5-NN: ([\d.]+)%", printed)[1]) > 70  # of ten classes


@pytest.mark.slow
def test_bring_your_own_and_again(tmp_path, capsys):
    main = main_of("bring_your_own")
    main(tmp_path, epochs=2)
    printed, log = capsys.readouterr().out, (tmp_path / "own" / "metrics.jsonl").read_text()
    assert "'step': 28" in printed and "(1, 16)" in printed
    main(tmp_path, epochs=2)  # nothing is left to do
    assert (tmp_path / "own" / "metrics.jsonl").read_text() == log
