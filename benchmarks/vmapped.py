"""Steps of encoders trained in one program by `vmap`, against the same ones one after another."""

from benchmarks.timing import device_kind, median, ratio, stepping, take_turns
from hypersphere_jax import data
from hypersphere_jax.configs import OptimizerConfig, PretrainConfig
from hypersphere_jax.reporting.tables import print_table
from hypersphere_jax.training import distributed
from hypersphere_jax.training.setup import RunSetup, initial_state, set_up
from hypersphere_jax.training.step import make_step_of, scalars_of
from hypersphere_jax.training.vmapped import make_vmapped_step, stacked

SINGLE, VMAPPED = "one after another", "vmapped"


def vmapped(
    encoders: tuple[int, ...],
    name: str,
    model: str,
    dim: int,
    width: float,
    batch_size: int,
    steps: int,
    rounds: int,
) -> None:
    """Time steps of encoders in one program, on one device, beside one encoder's, so many times."""
    base = PretrainConfig(data=name, model=model, dim=dim, width=width)
    setup = _set_up(base, data.load(base), batch_size)
    rows = []
    for count in encoders:
        record = measured(setup, count, steps, rounds)
        rows.append([count, round(record["single_ms"], 1), round(record["ms"], 1), record["ratio"]])
    columns = ["encoders", "one after another (ms a step of all)", "vmapped (ms)", "times as fast"]
    title = f"{model} on {name}, {batch_size} pairs each, {device_kind()}"
    print_table(columns, rows, title=title)


def _set_up(base: PretrainConfig, dataset: data.Dataset, batch_size: int) -> RunSetup:
    """The run of one of the encoders."""
    rule = OptimizerConfig(batch_size=batch_size, learning_rate=0.05)
    return set_up(base.replace(optimizer=rule, devices=1), lambda _: dataset)


def measured(setup: RunSetup, count: int, steps: int, rounds: int) -> dict[str, float]:
    """Milliseconds of a step of so many encoders, one after another and in one program."""
    single = stepping(*_single(setup), steps)
    together = stepping(*_vmapped(setup, count), steps)
    times = take_turns({SINGLE: single, VMAPPED: together}, rounds)
    return {
        "encoders": count,
        "ms": 1e3 * median(times[VMAPPED]) / steps,
        "single_ms": 1e3 * count * median(times[SINGLE]) / steps,
        "ratio": count * ratio(times, SINGLE, VMAPPED),
    }


def _single(setup: RunSetup) -> tuple:
    """Step, state and further arguments of one encoder."""
    source = setup.dataset.pretrain
    apply, state, key = initial_state(setup)
    step = make_step_of(setup.config, apply, setup.total_steps, axis_name=distributed.AXIS)
    hparams = scalars_of(setup.config)
    return step, state, (source.images, source.labels, setup.sampler(0), key, hparams)


def _vmapped(setup: RunSetup, count: int) -> tuple:
    """The same of several encoders, all equal, since their values do not change the speed."""
    apply, _, _ = initial_state(setup)
    _, state, (images, labels, *others) = _single(setup)
    step = make_vmapped_step(setup.config, apply, setup.total_steps)
    return step, stacked([state] * count), (images, labels, *stacked([tuple(others)] * count))
