"""Metrics on Weights & Biases, with a stub module instead of wandb."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from hypersphere_jax.configs import PretrainConfig, UserError, to_dict
from hypersphere_jax.training.metrics import MetricLogger, read_metrics

CONFIG = PretrainConfig(name="a", epochs=3, log_to="wandb")
RECORDS = [{"step": step, "loss": 1 / step} for step in range(1, 7)]


class FakeWandb(ModuleType):
    """The part of wandb that the package uses; `runs` contains the server's runs by id."""

    class Error(Exception):
        pass

    def __init__(self):
        super().__init__("wandb")
        self.runs = {}
        self.exit_codes = []

    def Settings(self, **settings):
        return settings

    def init(self, id, **options):
        run = self.runs.setdefault(id, SimpleNamespace(options=options, records=[]))
        run.step = len(run.records) + 1  # wandb rejects records of earlier steps
        run.log = lambda record, step: run.records.append(record)
        run.finish = lambda exit_code: self.exit_codes.append(exit_code)
        return run


@pytest.fixture
def wandb(monkeypatch):
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    return fake


def log(folder, config, records, start=0, failed=False):
    logger = MetricLogger(folder, config, start)
    for record in records:
        logger.log(record)
    logger.close(failed=failed)


def test_resumed_run_logs_each_step_once(wandb, tmp_path):
    log(tmp_path, CONFIG, RECORDS[:4], failed=True)
    log(tmp_path, CONFIG, RECORDS[2:], start=2)  # from the checkpoint of step 2
    (run,) = wandb.runs.values()
    assert run.records == read_metrics(tmp_path) == RECORDS
    assert wandb.exit_codes == [1, 0]
    assert run.options["config"] == to_dict(CONFIG)
    assert (run.options["name"], run.options["project"]) == ("a", "hypersphere-jax")


def test_each_run_has_its_own_id(wandb, tmp_path):
    log(tmp_path / "a", CONFIG, RECORDS)
    log(tmp_path / "b", CONFIG, RECORDS)
    log(tmp_path / "c", CONFIG.replace(log_to="none"), RECORDS)
    assert [run.records for run in wandb.runs.values()] == [RECORDS, RECORDS]


def test_error_of_wandb_is_a_user_error(wandb, monkeypatch, tmp_path):
    def fail(**options):
        raise wandb.Error("no key")

    monkeypatch.setattr(wandb, "init", fail)
    with pytest.raises(UserError, match="log_to=wandb"):
        MetricLogger(tmp_path, CONFIG, 0)
