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

    def init(self, id, name, config, **options):
        if name == "refused":
            raise self.Error("no key")
        run = self.runs.setdefault(id, SimpleNamespace(config=config, records=[]))
        run.step = len(run.records) + 1  # wandb rejects records of earlier steps
        run.log = lambda record, step: run.records.append(record)
        run.finish = lambda exit_code: self.exit_codes.append(exit_code)
        return run


@pytest.fixture
def wandb(monkeypatch):
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def log(folder, records, start=0, failed=False):
    logger = MetricLogger(folder, CONFIG, start)
    for record in records:
        logger.log(record)
    logger.close(failed=failed)


def test_each_run_logs_each_step_once(wandb, tmp_path):
    log(tmp_path / "a", RECORDS[:4], failed=True)
    log(tmp_path / "a", RECORDS[2:], start=2)  # from the checkpoint of step 2
    log(tmp_path / "b", RECORDS)
    assert [run.records for run in wandb.runs.values()] == [RECORDS, RECORDS]
    assert read_metrics(tmp_path / "a") == RECORDS
    assert wandb.exit_codes == [1, 0, 0]
    assert all(run.config == to_dict(CONFIG) for run in wandb.runs.values())


def test_error_of_wandb_is_a_user_error(wandb, tmp_path):
    with pytest.raises(UserError, match="log_to=wandb"):
        MetricLogger(tmp_path, CONFIG.replace(name="refused"), 0)
