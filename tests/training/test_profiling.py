"""`--profile`: the steps are in the trace that Perfetto opens, however they are called and end."""

import contextlib
import gzip
import json

import jax
import jax.numpy as jnp
import pytest
import tiny_runs

from hypersphere_jax import configs as C
from hypersphere_jax.training import loop, run_folder
from hypersphere_jax.training.profiling import Profiler


def traced(folder):
    """The first steps of all calls that a trace has."""
    (file,) = folder.glob("plugins/profile/*/perfetto_trace.json.gz")
    (_,) = file.parent.glob("*.xplane.pb")  # TensorBoard's
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    return [int(event["args"]["step_num"]) for event in events if event.get("name") == "train"]


@pytest.mark.parametrize(
    "at_once, end, error, expected, count",
    [
        (1, 9, None, [2, 3, 4], 3),
        (2, 20, None, [4, 6], 4),
        (1, 9, KeyboardInterrupt, [2, 3, 4], 3),
        (1, 4, C.Stopped, [2, 3], 2),
        (1, 2, None, [], 0),
    ],
)
def test_steps_are_traced_to_the_end_of_the_run(
    tmp_path, capsys, at_once, end, error, expected, count
):
    step, state = jax.jit(lambda x: x + 1), jnp.zeros(3)
    with contextlib.suppress(KeyboardInterrupt, C.Stopped), Profiler(3, tmp_path) as profiler:
        for start in range(0, end, at_once):
            with profiler.call(range(start, start + at_once), state):
                state = step(state)
        if error:
            raise error
    said = capsys.readouterr().err
    if count:
        assert traced(tmp_path) == expected and f"traced {count} steps: {tmp_path}/" in said
    else:
        assert "profile=: nothing is traced" in said and not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_runs_trace_is_in_its_folder_and_of_one_session(tmp_path, capsys):
    runtime = C.RuntimeConfig(devices=2, log_every_steps=2, checkpoint_every_steps=3, profile=4)
    folder = loop.train(tiny_runs.short(tmp_path, runtime=runtime))
    assert traced(folder / "profile") == [2, 3, 4, 5]
    assert f"tensorboard --logdir {folder}/profile" in capsys.readouterr().err
    assert run_folder.read_config(folder).profile is None
