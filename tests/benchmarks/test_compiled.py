"""What is counted in compiled programs, against what they must do."""

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import compiled
from benchmarks.launches import BANDWIDTH, FLOAT32, launches

FUSED = """\
HloModule made_up

%body_of_slice (all: f32[100,8], part: f32[1,8], place: s32[]) -> f32[100,8] {
  %all = f32[100,8]{1,0} parameter(0)
  %part = f32[1,8]{1,0} parameter(1)
  %place = s32[] parameter(2)
  %old = f32[1,8]{1,0} dynamic-slice(%all, %place, %place), dynamic_slice_sizes={1,8}
  %new = f32[1,8]{1,0} add(%old, %part)
  ROOT %put = f32[100,8]{1,0} dynamic-update-slice(%all, %new, %place, %place)
}

%turn (carry: (f32[100,8], s32[])) -> (f32[100,8], s32[]) {
  %carry = (f32[100,8]{1,0}, s32[]) parameter(0)
  %sums = f32[100,8]{1,0} get-tuple-element(%carry), index=0
  %i = s32[] get-tuple-element(%carry), index=1
  %left = bf16[16,4]{1,0} custom-call(), custom_call_target="made"
  %product = f32[16,8]{1,0} dot(%left, %left), lhs_contracting_dims={1}, rhs_contracting_dims={1}, algorithm=dot_bf16_bf16_f32_x3
  %one = f32[1,8]{1,0} slice(%product), slice={[0:1],[0:8]}
  %fusion = f32[100,8]{1,0} fusion(%sums, %one, %i), kind=kLoop, calls=%body_of_slice
  ROOT %both = (f32[100,8]{1,0}, s32[]) tuple(%fusion, %i)
}

%test (carry.1: (f32[100,8], s32[])) -> pred[] {
  %carry.1 = (f32[100,8]{1,0}, s32[]) parameter(0)
  ROOT %go = pred[] constant(true)
}

ENTRY %main (x: f32[100,8], n: s32[]) -> (f32[100,8], s32[]) {
  %x = f32[100,8]{1,0} parameter(0)
  %n = s32[] parameter(1)
  %start = (f32[100,8]{1,0}, s32[]) tuple(%x, %n)
  ROOT %loop = (f32[100,8]{1,0}, s32[]) while(%start), condition=%test, body=%turn, backend_config={"known_trip_count":{"n":"7"}}
}
"""  # noqa: E501


def test_slices_and_products_of_parts_are_counted():
    found = {one.name: one for one in launches(FUSED)}
    assert found.keys() == {"left", "product", "one", "fusion"}
    assert all(one.times == 7 for one in found.values())
    # In place: a row read and added, a row written; the other one and where.
    assert found["fusion"].moved == 3 * 8 * 4 + 4
    assert found["product"].bfloat16 == 3 * 2 * 16 * 8 * 4 and found["product"].float32 == 0
    assert found["left"].kind == "made" and found["left"].dtype == "bf16"


def test_what_a_cpu_program_moves_and_multiplies():
    n, m, k, turns = 64, 48, 32, 5
    a, b = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((n, k), (k, m)))

    def f(a, b):
        return jax.lax.fori_loop(0, turns, lambda i, a: jnp.tanh(a @ b) @ b.T, a)

    found = launches(compiled.compile_here(f, a, b).as_text())
    flop = sum(one.times * one.float32 for one in found)
    assert flop == turns * 2 * 2 * n * m * k
    moved = 4 * (2 * (n * k + k * m + n * m) + 2 * n * m)  # two products, and the tanh
    assert turns * moved <= compiled.moved(found) <= 2 * turns * moved
    seconds = sum(one.seconds for one in found)
    bounds = np.array([compiled.moved(found) / BANDWIDTH, flop / FLOAT32])
    assert bounds.max() <= seconds <= bounds.sum()


def test_the_worse_of_two_numbers_decides(monkeypatch, capsys):
    monkeypatch.setattr(compiled, "loss", lambda target, name: [])
    for found, status in (([["a", 1.0, "", 2]], 0), ([["a", 1.0, "", 2], ["b", 3.0, "", 2]], 1)):
        monkeypatch.setattr(compiled, "rows_of_loss", lambda name, program, f=found: iter(f))
        monkeypatch.setattr("sys.argv", ["compiled", "--only", "uniform"])
        assert compiled.main() == status
    assert "at most" in capsys.readouterr().out
