"""The benchmark of an accelerator: its float64 losses, its parts one by one, and what fails."""

import json
import sys
import time

import jax.numpy as jnp
import numpy as np
import oracles
import pytest

from benchmarks import accelerator, float64, pair_sums, timing
from benchmarks.roofline import Peaks
from hypersphere_jax.config import UserError

TAU, N = 0.05, 9


def wanted(name):
    """The same value by the oracles of the tests, as a function of x and y."""
    labels, t, alpha = float64.points(N, 4)[2], 1 / (2 * TAU), 1 / TAU
    alone = {
        "uniform": lambda x: oracles.uniform_oracle(x, t),
        "logsumexp": lambda x: oracles.logsumexp_oracle(x, TAU),
        "supervised_contrastive": lambda x: oracles.supervised_contrastive_oracle(x, labels, TAU),
    }
    if name in alone:
        return lambda x, y: alone[name](x)
    options = {
        "align": {},
        "uniform_queue": {"t": t},
        "nt_xent": {"tau": TAU, "similarity": "dot"},
        "decoupled_nt_xent": {"tau": TAU, "lam": 0.5},
        "generalized_nt_xent": {"alpha": alpha, "lam": 0.5},
        "balanced_contrastive": {"alpha": alpha, "lam": 0.5},
        "quick_thought_align": {},
        "quick_thought_uniform": {"t": t},
    }.get(name, {"tau": TAU})
    oracle = getattr(oracles, f"{name}_oracle")
    if name == "info_nce":
        half = N // 2
        return lambda x, y: oracle(x[:half], y[:half], y[half:], **options)
    if name == "sliced_wasserstein":
        return lambda x, y: oracle(x, y, np.eye(4))
    return lambda x, y: oracle(x, y, **options)


def test_float64_losses_are_those_of_the_papers(monkeypatch):
    """Values and slopes of the oracles, of blocks that do not divide the points."""
    monkeypatch.setattr(float64, "BLOCK", 4 * N)
    x, y, labels = float64.points(N, 4)
    rng, at = np.random.default_rng(1), np.arange(N)
    for name, case in float64.cases(TAU, 4).items():
        value, gradients = case.reference(float64.Sums(x, y, labels, TAU), at)
        oracle, sides = wanted(name), [x, y]
        np.testing.assert_allclose(value, oracle(*map(np.float64, sides)), rtol=1e-9, err_msg=name)
        directions = [rng.standard_normal(x.shape) for _ in gradients]
        still = [np.zeros_like(side) for side in sides[len(gradients) :]]
        slope = oracles.numeric_slope(oracle, sides, [*directions, *still])
        found = sum(np.sum(g * d) for g, d in zip(gradients, directions, strict=True))
        np.testing.assert_allclose(found, slope, rtol=1e-5, atol=1e-7, err_msg=name)
        part = case.reference(float64.Sums(x, y, labels, TAU), at[2:4])[1]
        assert len(part) == case.sides
        np.testing.assert_allclose(part[0], gradients[0][2:4], rtol=1e-10, err_msg=name)


def test_pair_sums_at_toy_size(monkeypatch):
    """In blocks, and with the kernel's sums as one matrix has them."""

    def sums(x, y, shift, bias, second, exclude, weighted):
        weights = jnp.exp(x @ y.T + bias[None] - shift[:, None])
        if second:
            weights += jnp.exp(x @ y.T + bias[None] - second[0][:, None] - second[1][None])
        weights *= 1 - exclude * jnp.eye(len(x))
        return (weights @ y, weights.sum(1))[not weighted :]

    monkeypatch.setattr(pair_sums, "BLOCK", 16)
    monkeypatch.setattr(pair_sums.fused, "sums_of_pairs", sums)
    forms = pair_sums.forms()
    assert len(forms) == 6
    for record in pair_sums.measured(64, forms, 1):
        assert max(record["errors"]) < 1e-6 and record["ms"] > 0, record


def test_pace_tells_device_and_host_apart():
    """A call that begins in 1 s and is computed in 3 s, one after the other."""
    now, ready = [0.0], [0.0]

    class Result:
        def block_until_ready(self):
            now[0] = max(now[0], ready[0])

    def begin():
        now[0] += 1
        ready[0] = max(now[0], ready[0]) + 3
        return Result()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing.jax, "block_until_ready", lambda result: result.block_until_ready())
        slow = timing.pace(begin, rounds=2, at_once=10, clock=lambda: now[0])
        quick = timing.pace(begin, rounds=2, at_once=10, clock=lambda: now[0] / 16)
    assert slow == (4, 4, 1)  # 4 s are too long for two at once
    assert quick == pytest.approx((3.125 / 16, 4 / 16, 1 / 16))  # 8 take two seconds


def test_rooflines():
    of_gpu = Peaks({"bfloat16": 800.0, "tf32": 400.0, "float32": 50.0, "bfloat16 x6": 100.0}, 10.0)
    of_cpu = Peaks({"bfloat16": 1.0, "float32": 5.0}, 10.0)
    assert (of_gpu.of_dtype("float32"), of_cpu.of_dtype("float32")) == (400, 5)
    assert of_gpu.of_dtype("bfloat16") == 800
    assert (of_gpu.of_precision("highest"), of_cpu.of_precision("high")) == (100, 5)
    assert of_gpu.seconds(800, 5, 400) == 2 and of_gpu.seconds(800, 50, 400) == 5


ENDS = {  # of a process: what it does after its first record, and why that part failed
    "": None,
    "raise SystemExit(3)": "its process ended: exit status 3",
    "import os; os.abort()": "its process ended: SIGABRT",
    "import time; time.sleep(3600)": "stopped: more than its 600 s",
}


def test_a_part_that_ends_early_leaves_its_records_and_the_reason(tmp_path, monkeypatch):
    file = tmp_path / "part.json"
    wait = accelerator.subprocess.Popen.wait

    def out_of_time(process, timeout=None):
        """Time runs out once a process that would sleep has written its record."""
        if "sleep" not in process.args[-1] or timeout != 600.0:
            return wait(process, timeout)
        while not (file.is_file() and file.read_text().endswith("}]}")):
            time.sleep(0.01)
        raise accelerator.subprocess.TimeoutExpired(process.args, timeout)

    monkeypatch.setattr(accelerator.subprocess.Popen, "wait", out_of_time)
    file.write_text("of an earlier run")
    for code, why in ENDS.items():
        write = f"with open({str(file)!r}, 'w') as f: f.write('{{\"records\": [{{\"n\": 1}}]}}')"
        command = [sys.executable, "-S", "-c", f"{write}\n{code}"]
        result = accelerator.run_part(command, file, 600.0, {})
        assert (result["records"], result.get("failure")) == ([{"n": 1}], why), code
    result = accelerator.run_part([sys.executable, "-S", "-c", "exit(1)"], file, 9.0, {})
    assert result["records"] == []  # not those of before


def test_parts_that_fail_do_not_end_the_others(tmp_path, monkeypatch):
    given, waits = {}, iter((0.0, 0.0, 100.0, 100.0, 100.0))
    records = {
        "versions": [{"device": "a chip", "torch": None}],
        "peaks": [{"what": "tf32 product", "tflop_s": 4.0}, {"what": "copy, MB", "tb_s": 2.0}],
        "losses": [{"loss": "uniform", "n": 511}, {"loss": "dcl", "failure": "<none>"}],
    }

    def run_part(command, file, seconds, environment):
        name, settings = command[3], json.loads(command[5])
        given[name] = seconds, settings["peaks"], settings["data_dir"]
        failed = {} if name == "versions" else {"failure": "no"}
        return {"records": records[name], "seconds": 1.0} | failed

    monkeypatch.setattr(accelerator, "run_part", run_part)
    monkeypatch.setattr(accelerator.time, "monotonic", lambda: next(waits))
    with pytest.raises(UserError, match="peaks, losses did not end; the page says"):
        accelerator.accelerator(tuple(records), 375 / 60, data_dir="zips", toy=False, out=tmp_path)
    # 375 s in shares of 30, 45 and 300 s: what is left of one goes to the next.
    assert [seconds for seconds, _, _ in given.values()] == pytest.approx([30, -25, 275])
    assert [found for _, found, _ in given.values()] == [None, None, [{"tf32": 4e12}, 2e12]]
    assert given["losses"][2].startswith("/") and given["losses"][2].endswith("/zips")
    parts = json.loads((tmp_path / "accelerator.json").read_text())["parts"]
    assert {name: part["records"] for name, part in parts.items()} == records
    page = (tmp_path / "accelerator.html").read_text()
    for text in ("a chip", "It did not end: no", "tf32 product", "&lt;none&gt;", "511"):
        assert text in page
