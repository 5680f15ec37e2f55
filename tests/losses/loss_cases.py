"""All pairwise losses with their oracles, and one compiled program of each."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
import oracles
import pytest
from points import sphere

import hypersphere_jax as hj

N = 12
M = 7
D = 5
# The same classes in reversed order. Two points have no positive.
LABELS = np.array([9, 7, -3, 4, 7, 5, 5, 7, 4, -3, 7, 8])


class Case(NamedTuple):
    """A loss and its oracle.

    Attributes:
      loss: the loss with the options of the case.
      oracle: the float64 oracle with the same options.
      shapes: a letter for each array: n points of the batch, m replicated points, D directions.
      numbers: values of the numeric options to try.
    """

    loss: Callable
    oracle: Callable
    shapes: str
    numbers: tuple[dict[str, float], ...]


def case(name: str, shapes: str, *numbers: dict[str, float], **options) -> Case:
    loss = functools.partial(getattr(hj, f"{name}_loss"), **options)
    oracle = functools.partial(getattr(oracles, f"{name}_oracle"), **options)
    return Case(loss, oracle, shapes, numbers)


def tau(*values: float) -> list[dict[str, float]]:
    return [{"tau": value} for value in values]


def t(*values: float) -> list[dict[str, float]]:
    return [{"t": value} for value in values]


PER_DIMENSION = {"scaling": "per_dimension"}
CASES = {
    "align": case("align", "nn", {"alpha": 2}, {"alpha": 1}, {"alpha": 0.5}),
    "uniform": case("uniform", "n", *t(2, 40, 400)),
    "uniform with self": case("uniform", "n", {"t": 3}, include_self=True),
    "contrastive": case("contrastive", "nn", *tau(0.5, 0.005)),
    "contrastive one-sided": case("contrastive", "nn", *tau(0.3), symmetric=False),
    "dcl": case("dcl", "nn", *tau(0.5, 0.01)),
    "info_nce": case("info_nce", "nnm", *tau(0.07, 0.005)),
    "queue only": case("uniform_queue", "nm", *t(2), intra_batch=False),
    "queue and batch": case("uniform_queue", "nm", *t(3, 40)),
    "nt_xent": case("nt_xent", "nn", *tau(0.5, 0.005)),
    "nt_xent dot": case("nt_xent", "nn", *tau(0.5), similarity="dot"),
    "nt_xent distance": case("nt_xent", "nn", *tau(0.2), similarity="neg_euclidean"),
    "decoupled": case("decoupled_nt_xent", "nn", {"tau": 1, "lam": 0.1}, {"tau": 0.2, "lam": 3}),
    "decoupled, tables": case("decoupled_nt_xent", "nn", {"tau": 0.3, "lam": 0.4}, **PER_DIMENSION),
    "decoupled, notebook": case(
        "decoupled_nt_xent", "nn", {"tau": 0.1, "lam": 0.4}, self_similarity=True, **PER_DIMENSION
    ),
    "balanced": case(
        "balanced_contrastive", "nn", {"alpha": 4, "lam": 2}, {"alpha": 200, "lam": 2}
    ),
    "generalized": case("generalized_nt_xent", "nn", {"alpha": 3, "lam": 2}),
    "logsumexp": case("logsumexp", "n", *tau(0.5, 0.01)),
    "supervised": case("supervised_contrastive", "n", *tau(0.3, 0.01), labels=LABELS),
    "sliced_wasserstein": case("sliced_wasserstein", "nnD", {}),
    "quick_thought_contrastive": case("quick_thought_contrastive", "nn", *tau(0.3)),
    "quick_thought_align": case("quick_thought_align", "nn", {"alpha": 1.5}),
    "quick_thought_uniform": case("quick_thought_uniform", "nn", *t(2)),
}


# Losses with mask and weights.
MASKED = (
    "align",
    "uniform",
    "uniform with self",
    "contrastive",
    "contrastive one-sided",
    "nt_xent",
    "nt_xent distance",
    "supervised",
)


def each_loss(fast=tuple(CASES), slow=()):
    """Parametrize a test by the losses."""
    slow_cases = [pytest.param(name, marks=pytest.mark.slow) for name in slow]
    return pytest.mark.parametrize("name", [*fast, *slow_cases])


def inputs(rng: np.random.Generator, shapes: str, n=N, m=M, d=D) -> list[np.ndarray]:
    """Unit features, the second n-set positives of the first; directions orthonormal."""
    x = sphere(rng, n, d)
    y = 0.4 * rng.standard_normal((n, d)) + x
    batch = iter([x, y / np.linalg.norm(y, axis=1, keepdims=True)])
    others = {"m": sphere(rng, m, d), "D": np.linalg.qr(rng.standard_normal((d, d)))[0]}
    return [np.float32(next(batch) if letter == "n" else others[letter]) for letter in shapes]


def scaled(shapes: str, arrays: list[np.ndarray], length: float) -> list[np.ndarray]:
    """Features times a length; directions as they are."""
    pairs = zip(shapes, arrays, strict=True)
    return [array if letter == "D" else length * array for letter, array in pairs]


@functools.cache
def program(name: str) -> Callable:
    """Return the compiled `(arrays, numbers) -> value, (gradients of arrays, of numbers)`."""

    def call(arrays, numbers):
        return CASES[name].loss(*arrays, **numbers)

    return jax.jit(jax.value_and_grad(call, argnums=(0, 1)))


def gradients(name: str, arrays, **numbers: float):
    arrays = [np.asarray(array, np.float32) for array in arrays]
    return program(name)(arrays, {key: np.float32(number) for key, number in numbers.items()})


def value(name: str, *arrays, **numbers: float) -> jax.Array:
    return gradients(name, arrays, **numbers)[0]


def assert_slopes(slopes, oracle, arrays, rng, rtol=3e-4, atol=3e-5):
    """Compare gradients, along random directions, with differences of an oracle."""
    directions = [rng.standard_normal(np.shape(array)) for array in arrays]
    expected = oracles.numeric_slopes(oracle, arrays, directions)
    found = [np.vdot(*pair) for pair in zip(slopes, directions, strict=True)]
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol)
