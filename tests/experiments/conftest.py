"""Where an item's runs and pictures go, and what an item plans."""

import pytest

from experiments.items import Context
from experiments.reproduce import ITEMS


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
