"""The benchmark of an accelerator: its float64 losses, its parts one by one, and what fails."""

import numpy as np
import oracles

from benchmarks import float64

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
        return lambda x, y, negatives: oracle(x, y, negatives, **options)
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
        oracle, sides = wanted(name), [x, y] + [y] * (name == "info_nce")
        np.testing.assert_allclose(value, oracle(*map(np.float64, sides)), rtol=1e-9, err_msg=name)
        directions = [rng.standard_normal(x.shape) for _ in gradients]
        still = [np.zeros_like(side) for side in sides[len(gradients) :]]
        slope = oracles.numeric_slope(oracle, sides, [*directions, *still])
        found = sum(np.sum(g * d) for g, d in zip(gradients, directions, strict=True))
        np.testing.assert_allclose(found, slope, rtol=1e-5, atol=1e-7, err_msg=name)
        part = case.reference(float64.Sums(x, y, labels, TAU), at[2:4])[1]
        assert len(part) == case.sides
        np.testing.assert_allclose(part[0], gradients[0][2:4], rtol=1e-10, err_msg=name)
