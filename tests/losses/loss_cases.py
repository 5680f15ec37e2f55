"""All losses with their oracles, and one compiled program of each that the tests share."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
import oracles
from points import sphere

import hypersphere_jax as hj


class Case(NamedTuple):
    """A loss and its oracle with the same options."""

    loss: Callable
    oracle: Callable
    shapes: str  # n points of the batch, m replicated points, D directions
    numbers: list[dict[str, float]]


def case(name: str, shapes: str, *numbers: dict[str, float], **options) -> Case:
    loss = functools.partial(getattr(hj, f"{name}_loss"), **options)
    oracle = functools.partial(getattr(oracles, f"{name}_oracle"), **options)
    return Case(loss, oracle, shapes, list(numbers))


def each(name: str, *values: float) -> list[dict[str, float]]:
    return [{name: value} for value in values]


CASES = {
    "align": case("align", "nn", *each("alpha", 2, 1, 0.5)),
    "uniform": case("uniform", "n", *each("t", 2, 7, 40)),
    "uniform (8)": case("uniform", "n", {"t": 3}, include_self=True),
    "contrastive": case("contrastive", "nn", *each("tau", 0.5, 0.005)),
    "contrastive rows": case("contrastive", "nn", *each("tau", 0.3), symmetric=False),
    "dcl": case("dcl", "nn", *each("tau", 0.5, 0.01)),
    "info_nce": case("info_nce", "nnm", *each("tau", 0.07, 0.005)),
    "queue (21)": case("uniform_queue", "nm", *each("t", 2), intra_batch=False),
    "queue (22)": case("uniform_queue", "nm", *each("t", 3, 40)),
    "nt_xent": case("nt_xent", "nn", *each("tau", 0.5, 0.005)),
    "nt_xent dot": case("nt_xent", "nn", *each("tau", 0.5), similarity="dot"),
    "nt_xent neg_euclidean": case("nt_xent", "nn", *each("tau", 0.2), similarity="neg_euclidean"),
    "decoupled": case("decoupled_nt_xent", "nn", {"tau": 1, "lam": 0.1}, {"tau": 0.2, "lam": 3}),
    "in tables": case("decoupled_nt_xent", "nn", {"tau": 0.3, "lam": 0.4}, scaling="per_dimension"),
    "notebook": case(
        "decoupled_nt_xent",
        "nn",
        {"tau": 0.1, "lam": 0.4},
        scaling="per_dimension",
        self_similarity=True,
    ),
    "balanced": case("balanced_contrastive", "nn", *({"alpha": a, "lam": 2} for a in (4, 200))),
    "generalized": case("generalized_nt_xent", "nn", {"alpha": 3, "lam": 2}),
    "logsumexp": case("logsumexp", "n", *each("tau", 0.5, 0.01)),
    "sliced_wasserstein": case("sliced_wasserstein", "nnD", {}),
    "quick_thought_contrastive": case("quick_thought_contrastive", "nn", *each("tau", 0.3)),
    "quick_thought_align": case("quick_thought_align", "nn", *each("alpha", 1.5)),
    "quick_thought_uniform": case("quick_thought_uniform", "nn", *each("t", 2)),
}
# Forms of a loss that differ from another form before pairs are formed.
VARIANTS = ("uniform (8)", "contrastive rows", "queue (21)", "nt_xent dot", "in tables", "notebook")
ONE_FORM = [name for name in CASES if name not in VARIANTS]
N = 12
M = 7
D = 5


def inputs(rng: np.random.Generator, shapes: str, n=N, m=M, d=D) -> list[np.ndarray]:
    """Unit features, the second n-set positives of the first; directions orthonormal."""
    x = sphere(rng, n, d)
    y = 0.4 * rng.standard_normal((n, d)) + x
    sides = iter([x, y / np.linalg.norm(y, axis=1, keepdims=True)])
    others = {"m": sphere(rng, m, d), "D": np.linalg.qr(rng.standard_normal((d, d)))[0]}
    return [np.float32(next(sides) if s == "n" else others[s]) for s in shapes]


@functools.cache
def program(name: str) -> Callable:
    """`arrays, numbers -> value, (gradients of arrays, of numbers)` of a case."""

    def call(arrays, numbers):
        return CASES[name].loss(*arrays, **numbers)

    return jax.jit(jax.value_and_grad(call, argnums=(0, 1)))


def gradients(name: str, arrays, **numbers: float):
    arrays = [np.asarray(array, np.float32) for array in arrays]
    return program(name)(arrays, {key: np.float32(number) for key, number in numbers.items()})


def value(name: str, *arrays, **numbers: float) -> jax.Array:
    return gradients(name, arrays, **numbers)[0]
