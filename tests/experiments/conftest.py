"""Where the runs and pictures go, what a reproduction plans, and what it gives to be drawn."""

import pytest

from experiments.balanced import theorems
from experiments.plots import comparisons
from experiments.reproduce import REPRODUCTIONS
from experiments.reproduction import Context
from experiments.wang_isola import (
    many_negatives,
    plane,
    point_sets,
    propositions,
    single_negative,
    trajectories,
    weights,
)

DRAWINGS = {
    comparisons: "heat_maps",
    many_negatives: "draw_deviations",
    plane: "encoder_planes",
    point_sets: "draw_proposition2",
    propositions: "draw_proposition1",
    single_negative: "draw_single_negative",
    theorems: "bound_figure",
    trajectories: "draw_trajectories",
    weights: "draw_weights",
}


@pytest.fixture
def context(tmp_path):
    return Context("laptop", tmp_path / "runs", tmp_path / "item")


@pytest.fixture
def plan(context):
    """`plan(item, scale, row=...)`: the runs of all stages, before any is done."""

    def planned(item, scale="laptop", **more):
        where = context._replace(scale=scale, **more)
        return [
            one for stage in REPRODUCTIONS[item].scales[scale].stages for one in stage(where, [])
        ]

    return planned


@pytest.fixture
def drawn(monkeypatch):
    """What is given to each drawing; nothing is drawn."""
    given = {}
    for module, name in DRAWINGS.items():
        keep = lambda *values, name=name, **_: given.update({name: values})  # noqa: E731
        monkeypatch.setattr(module, name, keep)
    return given
