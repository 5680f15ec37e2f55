"""Another number of epochs for a run that is there.

It shapes a run through its schedules alone. Where these had the same values in all steps that are
done, the run goes on as if it had been begun with that number; else with `--extend` only.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hypersphere_jax.config import PretrainConfig, differences, require
from hypersphere_jax.training.optimizers import make_schedule
from hypersphere_jax.training.step import ema_decay

# Of the optimizer: what may change, as the steps that are done allow.
SCHEDULE = ("epochs", "decay_at")


def schedule_of(config: PretrainConfig) -> dict[str, Any]:
    """The part of a config that may change, for the record of a session."""
    return {name: getattr(config.optimizer, name) for name in SCHEDULE}


def is_extension(
    folder: Path,
    sessions: Sequence[dict[str, Any]],
    old: PretrainConfig,
    new: PretrainConfig,
    steps_per_epoch: int,
    done: int,
) -> bool:
    """Whether a run goes on by another schedule than its steps had, which `--extend` allows.

    Args:
      folder: of the run.
      sessions: its record of them, with the step that each began from and its schedule.
      old: config of the last session.
      new: differs in its schedule alone.
      steps_per_epoch: of the run.
      done: steps.

    Raises:
      UserError: when it does without `--extend`; for fewer epochs than are done.
    """
    changes = differences(schedule_of(old), schedule_of(new))
    if not changes:
        return False
    epochs, total = new.optimizer.epochs, new.optimizer.epochs * steps_per_epoch
    at = f"{folder} is at epoch {done / steps_per_epoch:.4g}"
    least = -(-done // steps_per_epoch)
    require(total >= done, f"{at}: give epochs={least} or more, not {epochs}")
    planned = old.optimizer.epochs * steps_per_epoch
    had, has = (_values(config, steps_per_epoch, planned) for config in (old, new))
    for session in sessions:
        if {"from_step", "schedule"} <= session.keys():
            of_session = old.replace(**{k: _tuple(v) for k, v in session["schedule"].items()})
            start = session["from_step"]
            had[:, start:] = _values(of_session, steps_per_epoch, planned)[:, start:]
    had, has = had[:, :done], has[:, :done]
    if (had == has).all():
        return False
    which, step = np.unravel_index(np.argmax(np.abs(had - has)), had.shape)
    name = ("learning rate", "decay of the momentum encoder")[which]
    changes.append(f"{name} of step {step + 1}: {had[which, step]:.3g} -> {has[which, step]:.3g}")
    other = f"{at}: its schedule would have been another one ({'; '.join(changes)})"
    require(total > done, f"{other}, and no step is left: give more epochs=")
    require(
        new.runtime.extend,
        f"{other}: extend= goes on with steps {done + 1} to {total} by the new one, which is not "
        f"what {epochs} epochs from the start would give; or choose another name=",
    )
    return True


def _values(config: PretrainConfig, steps_per_epoch: int, n: int) -> np.ndarray:
    """Learning rate and decay of the momentum encoder in the first n steps of a run, `[2, n]`."""
    total = config.optimizer.epochs * steps_per_epoch
    schedules = make_schedule(config.optimizer, total), ema_decay(config.moco, total)
    return np.stack([np.broadcast_to(schedule(np.arange(n)), n) for schedule in schedules])


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
