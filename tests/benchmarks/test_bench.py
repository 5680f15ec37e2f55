"""The benchmark of the losses: its forms agree, its arithmetic is right."""

import time

import numpy as np
import pytest

from benchmarks import losses, timing
from benchmarks.loss_forms import DENSE, LOSSES, OURS, TORCH, make_form, unit_vectors

FORMS = [DENSE] + ([TORCH] if losses.importlib.util.find_spec("torch") else [])


def test_forms_agree():
    for name, loss in LOSSES.items():
        arrays = unit_vectors(loss.inputs, 24, 6)
        value, gradients = make_form(loss, OURS, arrays)()
        for form in FORMS:
            other, others = make_form(loss, form, arrays)()
            np.testing.assert_allclose(float(other), float(value), rtol=1e-5, err_msg=name)
            assert len(others) == len(gradients) == loss.learned
            for one, two in zip(gradients, others, strict=True):
                np.testing.assert_allclose(np.asarray(two), one, atol=1e-6, err_msg=name)


def test_summary_is_the_arithmetic_of_the_rounds():
    seconds = {
        OURS: np.array([2.0]),  # slow: one round
        DENSE: np.array([4.0, 100.0, 100.0]),
        losses.PRODUCT: np.array([0.5, 1.0, 1.0]),
    }
    given = (1000, 5, seconds, 1e7)  # a whole product of this size is 1e7 flops
    ours, dense = (losses.summary(LOSSES["contrastive"], form, *given) for form in (OURS, DENSE))
    assert ours["ms"] == 2000 and ours["ratio"] == 1 and ours["limit_ms"] == 4000
    assert ours["share"] == pytest.approx(4 * 0.5 / 2)
    assert dense["ratio"] == 2  # of the round that both had
    assert dense["share"] == pytest.approx(3 * 1 / 100)
    assert dense["limit_ms"] == 4000  # one limit for all forms
    projected = LOSSES["sliced_wasserstein"].flops(OURS, 100, 5)
    assert projected == 3 * 2 * 100 * 5 * 5


def test_rounds_are_counted_by_a_clock_that_is_told(monkeypatch):
    """The first one compiles and does not count; who is slow in the next has no other."""
    now, calls = [0.0], {"slow": 0, "quick": 0}
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def form(name, seconds):
        def call():
            calls[name] += 1
            now[0] += 1000.0 if calls[name] == 1 else seconds

        return call

    forms = {"slow": form("slow", 30.0), "quick": form("quick", 0.5)}
    slow, quick = losses.adaptive_rounds(forms, 4).values()
    assert (slow.tolist(), quick.tolist()) == ([30.0], [0.5] * 4)
    assert timing.take_turns(forms, 2)["quick"].tolist() == [0.5, 0.5]


def test_peak_and_base_are_of_their_processes(monkeypatch):
    found = {1: {"resident_mb": 9.0}, 0: {"resident_mb": 4.0}}
    monkeypatch.setattr(losses, "_worker", lambda name, form, n, dim, calls: found[calls])
    memory = losses.peak_memory("uniform", OURS, 8, 2)
    assert (memory["peak_mb"], memory["base_mb"]) == (9, 4)
