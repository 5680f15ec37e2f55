"""Where an item's runs and pictures go, what an item plans, and what it gives to be drawn."""

import pytest

from experiments.items import Context
from experiments.reproduce import ITEMS
from hypersphere_jax import plots

DRAWINGS = "metrics_planes weights_curves trajectories circle_figure heat_maps"
DRAWINGS += " limit_deviations single_negative_sheet bound_sheet"


@pytest.fixture
def context(tmp_path):
    return Context("laptop", tmp_path / "runs", tmp_path / "item")


@pytest.fixture
def plan(context):
    """`plan(item, scale, row=...)`: the runs of all stages of an item, before any is done."""

    def planned(item, scale="laptop", **more):
        where = context._replace(scale=scale, **more)
        return [one for stage in ITEMS[item].scales[scale].stages for one in stage(where, [])]

    return planned


@pytest.fixture
def drawn(monkeypatch):
    """What is given to each drawing; nothing is drawn."""
    found = {}
    for name in DRAWINGS.split():
        keep = lambda *given, name=name, **_: found.update({name: given})  # noqa: E731
        monkeypatch.setattr(plots, name, keep)
    return found
