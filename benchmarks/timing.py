"""Timing that can be trusted on a machine whose speed drifts."""

import time
from collections.abc import Callable

import numpy as np


def take_turns(forms: dict[str, Callable[[], object]], rounds: int) -> dict[str, np.ndarray]:
    """Seconds of each form in each round, after one round that compiles and does not count.

    All forms take turns in every round, so that a slow moment slows all alike: compare them by the
    median of the ratios. Their order changes from round to round, as what runs before a form
    decides what the caches hold: with the same form always after a large product, a millisecond's
    work looked up to a tenth slower. A form must wait for its result.
    """
    times: dict[str, list[float]] = {name: [] for name in forms}
    rng = np.random.default_rng(0)
    for number in range(rounds + 1):
        for name in rng.permutation(list(forms)):
            began = time.perf_counter()
            forms[name]()
            if number:
                times[name].append(time.perf_counter() - began)
    return {name: np.array(seconds) for name, seconds in times.items()}
