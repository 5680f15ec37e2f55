"""All losses with their oracles, for what is tested of every loss alike."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
import oracles
import pytest
from conftest import sphere

import hypersphere_jax as hj


class Case(NamedTuple):
    """A loss and its oracle with the same options.

    `shapes` has a letter for each array: n points of the batch, m points that all devices share, D
    directions.
    """

    loss: Callable
    oracle: Callable
    shapes: str
    pairwise: bool = True


def case(name, shapes, pairwise=True, **options):
    oracle = getattr(oracles, f"{name}_oracle")
    loss = getattr(hj, f"{name}_loss")
    return Case(
        functools.partial(loss, **options), functools.partial(oracle, **options), shapes, pairwise
    )


# One list for all that is tested of every loss alike.
CASES = {
    "align 2": case("align", "nn", False),
    "align 1": case("align", "nn", False, alpha=1.0),
    "align 0.5": case("align", "nn", False, alpha=0.5),
    "uniform 2": case("uniform", "n"),
    "uniform 7": case("uniform", "n", t=7.0),
    "uniform 40": case("uniform", "n", t=40.0),
    "uniform (8)": case("uniform", "n", t=3.0, include_self=True),
    "contrastive 0.5": case("contrastive", "nn"),
    "contrastive 0.005": case("contrastive", "nn", tau=0.005),
    "dcl 0.5": case("dcl", "nn"),
    "dcl 0.01": case("dcl", "nn", tau=0.01),
    "info_nce 0.07": case("info_nce", "nnm"),
    "info_nce 0.005": case("info_nce", "nnm", tau=0.005),
    "queue (21)": case("uniform_queue", "nm", intra_batch=False),
    "queue (22)": case("uniform_queue", "nm", t=3.0),
    "queue (22) 40": case("uniform_queue", "nm", t=40.0),
    "nt_xent 0.5": case("nt_xent", "nn"),
    "nt_xent 0.005": case("nt_xent", "nn", tau=0.005),
    "nt_xent dot": case("nt_xent", "nn", similarity="dot"),
    "nt_xent neg_euclidean": case("nt_xent", "nn", tau=0.2, similarity="neg_euclidean"),
    "decoupled": case("decoupled_nt_xent", "nn"),
    "decoupled per_dimension": case(
        "decoupled_nt_xent", "nn", tau=0.3, lam=0.4, scaling="per_dimension"
    ),
    "balanced": case("balanced_contrastive", "nn"),
    "balanced 200": case("balanced_contrastive", "nn", alpha=200.0, lam=3.0),
    "generalized": case("generalized_nt_xent", "nn"),
    "logsumexp 0.5": case("logsumexp", "n"),
    "logsumexp 0.01": case("logsumexp", "n", tau=0.01),
    "sliced_wasserstein": case("sliced_wasserstein", "nnD", False),
    "quick_thought_contrastive": case("quick_thought_contrastive", "nn", tau=0.3),
    "quick_thought_align": case("quick_thought_align", "nn", False, alpha=1.5),
    "quick_thought_uniform": case("quick_thought_uniform", "nn", t=2.0),
}
PAIRWISE = [name for name, a_case in CASES.items() if a_case.pairwise]
# One of each way through the code, as they take seconds to compile for devices.
ON_DEVICES = [
    *("align 2", "uniform 2", "uniform 40", "contrastive 0.5", "dcl 0.5", "info_nce 0.07"),
    *("queue (22)", "nt_xent neg_euclidean", "balanced", "sliced_wasserstein"),
    *("logsumexp 0.5", "quick_thought_contrastive", "quick_thought_align"),
]
each_loss = pytest.mark.parametrize("name", CASES)


def inputs(rng, shapes, n=11, m=7, d=5):
    """Unit features, the second n-set positives of the first; directions orthonormal."""
    arrays = []
    for letter in shapes:
        if letter == "D":
            arrays.append(np.linalg.qr(rng.standard_normal((d, d)))[0].astype(np.float32))
        elif letter == "m" or not arrays:
            arrays.append(sphere(rng, n if letter == "n" else m, d))
        else:
            y = arrays[0] + 0.4 * rng.standard_normal((n, d))
            arrays.append((y / np.linalg.norm(y, axis=1, keepdims=True)).astype(np.float32))
    return arrays


def gradients(loss, arrays, **options):
    """The value and the gradients of all arrays."""
    return jax.value_and_grad(lambda arrays: loss(*arrays, **options))(list(arrays))


@functools.cache
def compiled(name):
    """`arrays, tangents -> value, value with gradients, derivative along the tangents` of a case.

    The tests share it, as compiling is most of their time.
    """
    loss = CASES[name].loss

    def every_way(arrays, tangents):
        return loss(*arrays), gradients(loss, arrays), jax.jvp(loss, arrays, tangents)[1]

    jitted = jax.jit(every_way)

    def call(arrays, tangents=None):
        tangents = arrays if tangents is None else tangents
        return jitted(
            *(tuple(np.asarray(a, np.float32) for a in side) for side in (arrays, tangents))
        )

    return call
