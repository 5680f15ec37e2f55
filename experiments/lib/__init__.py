"""Tools shared by all items: sweeps, statistics, plots and the papers' printed tables."""

from experiments.lib.evaluation import Evaluation
from experiments.lib.records import Rows
from experiments.lib.sweep import Run

__all__ = ["Evaluation", "Rows", "Run"]
