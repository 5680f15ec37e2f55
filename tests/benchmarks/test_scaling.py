"""The count of what devices send: the parser on a text, and compiled programs against formulas."""

import jax
import jax.numpy as jnp
import pytest

from benchmarks import scaling
from benchmarks.collectives import traffic
from hypersphere_jax import contrastive_loss, uniform_loss

FLOAT, N, D = 4, 64, 256
TEXT = """\
%body (p: (s32[], bf16[4,2])) -> (s32[], bf16[4,2]) {
  %passed = bf16[4,2]{1,0} collective-permute(%x), source_target_pairs={{0,1},{1,0}}
}
%often (p: f32[]) -> f32[] {
  ROOT %small = f32[] all-reduce(%p)
}
%rare (p: f32[]) -> f32[] {
  %large = pred[100]{0} all-reduce(%p)
}
ENTRY %main (p: f32[8]) -> f32[8] {
  %w = (s32[], bf16[4,2]{1,0}) while(%t), body=%body, backend_config={"known_trip_count":{"n":"5"}}
  %c = f32[] conditional(%q, %a, %b), branch_computations={%rare, %often}
  %g = f32[16]{0} all-gather(%p), dimensions={0}, metadata={op_name="jit(f)/all-to-all(x)"}
  %s = f32[8]{0} reduce-scatter(%p)
  ROOT %t = (f32[4]{0}, /*index=1*/s32[4]{0}) all-to-all(%g, %s)
}
"""


def bytes_received(loss, devices, ring):
    """The bytes that a device receives by each collective, for value and gradient."""
    inputs = 1 if loss is uniform_loss else 2
    of_one = lambda *sides: loss(*sides, axis_name="data", ring=ring)  # noqa: E731
    program = jax.value_and_grad(of_one, argnums=tuple(range(inputs)))
    arguments = (jax.ShapeDtypeStruct((N, D), jnp.float32),) * inputs
    record = scaling.compiled_record(program, arguments, devices)
    return {kind: each["received"] for kind, each in record["collectives"].items()}


def test_parser_follows_loops_branches_and_dtypes():
    assert traffic(TEXT, 2) == {
        "all-gather": (1, 16 * 4 // 2),
        "all-reduce": (1, 4),  # 2 (N - 1) / N of one float
        "reduce-scatter": (1, 8 * 4),
        "all-to-all": (1, 8 * 4 // 2),
        "collective-permute": (5, 5 * 8 * 2),
    }
    assert traffic(TEXT, 2, max)["all-reduce"] == (1, 100)
    assert traffic(TEXT, 4)["all-gather"] == (1, 16 * 4 * 3 // 4)


@pytest.mark.parametrize("devices", [2, pytest.param(8, marks=pytest.mark.slow)])
def test_contrastive_loss_sends_what_its_formula_says(devices):
    others = devices - 1
    gathered = bytes_received(contrastive_loss, devices, ring=False)
    # Features, their bias and the columns' sums arrive; those sums and the gradient go home.
    assert gathered["all-gather"] == others * N * (D + 2) * FLOAT
    assert gathered["all-to-all"] == others * N * (D + 1) * FLOAT
    ring = bytes_received(contrastive_loss, devices, ring=True)
    travels = (D + 2) + (2 * D + 2)  # with the sums, then with sums and the gradient
    home = D + 1 if devices > 2 else 0  # what goes home; with two, XLA sees that it comes back
    assert ring["collective-permute"] == (others * travels + home) * N * FLOAT


@pytest.mark.parametrize("devices", [1, pytest.param(8, marks=pytest.mark.slow)])
def test_uniform_loss_sends_its_points_once(devices):
    for ring, kind in ((False, "all-gather"), (True, "collective-permute")):
        record = bytes_received(uniform_loss, devices, ring)
        assert record.get(kind, 0) == (devices - 1) * N * (D + 1) * FLOAT
        # Whether the logits fit, the sum and the value.
        assert record["all-reduce"] == round(2 * (devices - 1) / devices * 3 * FLOAT)
        assert set(record) <= {kind, "all-reduce"}


def test_predictions_are_bytes_over_bandwidth():
    link = scaling.Link(8, 100.0, 10.0, "chip", 1000.0)
    reduced = {"all-reduce": {"count": 1, "received": 300}}
    gathered = {"all-gather": {"count": 1, "received": 50}, "all-to-all": {"received": 150}}
    ring = {"collective-permute": {"count": 7, "received": 70}}
    both = ({"flops": 800.0, "collectives": reduced | through} for through in (gathered, ring))
    parts = {"compute": 2.0, "gradients": 3.0, "gathered": 2.0, "ring": 7.0}
    assert scaling.predicted(link, *both) == parts
