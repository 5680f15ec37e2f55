"""The count of what devices send: the parser on a text, and compiled programs against formulas."""

import functools
import json

import jax
import jax.numpy as jnp
import pytest

import run as run_py
from benchmarks import scaling
from benchmarks.collectives import traffic
from hypersphere_jax import contrastive_loss, uniform_loss
from hypersphere_jax.config import UserError

FLOAT = 4
N, D = 64, 256
TEXT = """\
HloModule jit_f, is_scheduled=true

%sum (a: f32[], b: f32[]) -> f32[] {
  ROOT %add = f32[] add(%a, %b)
}

%inner (p: (s32[], bf16[4,2])) -> (s32[], bf16[4,2]) {
  %passed = bf16[4,2]{1,0} collective-permute(%x), source_target_pairs={{0,1},{1,0}}
}

%outer (p: (s32[], bf16[4,2])) -> (s32[], bf16[4,2]) {
  %w = (s32[], bf16[4,2]{1,0}) while(%t), body=%inner, backend_config={"known_trip_count":{"n":"3"}}
}

%often (p: f32[]) -> f32[] {
  ROOT %small = f32[] all-reduce(%p), to_apply=%sum
}

%rare (p: f32[]) -> f32[] {
  %large = pred[100]{0} all-reduce(%p), to_apply=%sum
}

ENTRY %main (p: f32[8]) -> f32[8] {
  %w = (s32[], bf16[4,2]{1,0}) while(%t), body=%outer, backend_config={"known_trip_count":{"n":"5"}}
  %c = f32[] conditional(%q, %a, %b), branch_computations={%rare, %often}
  %g = f32[16]{0} all-gather(%p), dimensions={0}, metadata={op_name="jit(f)/all-to-all(x)"}
  %s = f32[8]{0} reduce-scatter(%p), to_apply=%sum
  ROOT %t = (f32[4]{0}, /*index=1*/s32[4]{0}) all-to-all(%g, %s)
}
"""


def received(program, arguments, devices):
    """The record of a program, and the bytes that a device receives by each collective."""
    found = scaling.compiled_record(program, arguments, devices)
    return found, {kind: each["received"] for kind, each in found["collectives"].items()}


@functools.cache
def loss_record(loss, devices, ring):
    """Of value and gradient."""
    inputs = 1 if loss is uniform_loss else 2

    def of_one(*sides):
        return loss(*sides, axis_name="data", ring=ring)

    shape = jax.ShapeDtypeStruct((N, D), jnp.float32)
    program = jax.value_and_grad(of_one, argnums=tuple(range(inputs)))
    return received(program, (shape,) * inputs, devices)


def test_parser_follows_loops_branches_and_dtypes():
    assert traffic(TEXT, 2) == {
        "all-gather": (1, 16 * 4 // 2),
        "all-reduce": (1, 4),  # 2 (N - 1) / N of one float
        "reduce-scatter": (1, 8 * 4),
        "all-to-all": (1, 8 * 4 // 2),
        "collective-permute": (15, 15 * 8 * 2),
    }
    assert traffic(TEXT, 2, max)["all-reduce"] == (1, 100)
    assert traffic(TEXT, 4)["all-gather"] == (1, 16 * 4 * 3 // 4)
    assert all(each.received == 0 for each in traffic(TEXT, 1).values())
    with pytest.raises(ValueError, match="unknown length"):
        traffic(TEXT.replace("known_trip_count", "guess"), 2)
    with pytest.raises(ValueError, match="all-gather is split"):
        traffic(TEXT.replace("all-gather(", "all-gather-start("), 2)


@pytest.mark.parametrize("devices", [2, 8])
def test_contrastive_loss_sends_what_its_formula_says(devices):
    others = devices - 1
    _, gathered = loss_record(contrastive_loss, devices, ring=False)
    # Features, their bias and the columns' sums arrive; those sums and the gradient go home.
    assert gathered["all-gather"] == others * N * (D + 2) * FLOAT
    assert gathered["all-to-all"] == others * N * (D + 1) * FLOAT
    _, ring = loss_record(contrastive_loss, devices, ring=True)
    travels = (D + 2) + (2 * D + 2)  # with the sums, then with sums and the gradient
    # What goes home after the last device; with two, XLA sees that what was sent out comes back.
    home = D + 1 if devices > 2 else 0
    assert ring["collective-permute"] == (others * travels + home) * N * FLOAT
    assert set(ring) <= {"all-reduce", "collective-permute"}


@pytest.mark.parametrize("devices", [1, 8])
def test_uniform_loss_sends_its_points_once(devices):
    for ring, kind in ((False, "all-gather"), (True, "collective-permute")):
        _, found = loss_record(uniform_loss, devices, ring)
        assert found.get(kind, 0) == (devices - 1) * N * (D + 1) * FLOAT
        # The centre, whether the logits fit, the sum and the value.
        assert found["all-reduce"] == round(2 * (devices - 1) / devices * (D + 3) * FLOAT)
        assert set(found) <= {kind, "all-reduce"}


@pytest.mark.parametrize("loss", [uniform_loss, contrastive_loss])
def test_memory_of_the_ring_does_not_grow_with_the_devices(loss):
    def held(devices, ring):
        return loss_record(loss, devices, ring)[0]["temporary_bytes"]

    block = N * D * FLOAT
    assert held(8, ring=True) == held(4, ring=True)
    # The visitor, what this device passes on, and what is gathered for it on the way.
    assert held(8, ring=True) - held(1, ring=True) <= 3 * block + N * N * FLOAT
    assert held(8, ring=False) - held(4, ring=False) >= 4 * block


def sizes(state):
    """Parameters, and running statistics."""
    trees = state.params, state.stats
    return [sum(leaf.size for leaf in jax.tree.leaves(tree)) for tree in trees]


def of_step(step, devices):
    """Its traffic, parameters, running statistics, and numbers that it reduces."""
    _, found = received(*step, devices)
    trees = step[1][0].params, step[1][0].stats
    shares = found["all-reduce"] / (2 * (devices - 1) / devices * FLOAT)
    return found, *[sum(leaf.size for leaf in jax.tree.leaves(tree)) for tree in trees], shares


@pytest.mark.slow
def test_step_reduces_gradients_and_statistics(devices=8, dim=16):
    step = scaling._step(4, dim, "small_cnn", 8, ring=False)
    found, parameters, running, shares = of_step(step, devices)
    # Running statistics, those of the batch and their gradients; the two centres, and scalars.
    least = parameters + running
    assert least <= shares <= least + 2 * running + 2 * dim + 20
    assert found["all-gather"] == 2 * (devices - 1) * 4 * (dim + 1) * FLOAT


@pytest.mark.slow
@pytest.mark.parametrize("form", scaling.SENT)
def test_a_step_of_moco_sends_what_its_formula_says(form, devices=4, n=4, size=8, dim=16):
    resident = scaling.SENT[form]
    step = scaling._moco_step(n, dim, "small_cnn", size, resident, shuffled=True)
    found, parameters, running, shares = of_step(step, devices)
    # What samples are made of and their positions go out, keys come home; queries for uniformity.
    sample = FLOAT if resident else size * size * 3
    features = dim + (dim + 1)
    assert found["all-gather"] == (devices - 1) * n * (sample + FLOAT + features * FLOAT)
    # Gradients, statistics of queries and of keys, the new keys of all devices, and scalars.
    least = parameters + 2 * running + devices * n * dim
    assert least <= shares <= least + 4 * dim + 20


def test_each_form_of_each_program_is_compiled():
    records = scaling.compiled_records(2, 4, 8, "small_cnn", 8, step=False)
    for form, kind in (("gathered", "all-gather"), ("ring", "collective-permute")):
        found = [record for record in records if record["form"] == form]
        assert [record["what"] for record in found] == ["align+uniform", "contrastive"]
        assert all(kind in record["collectives"] for record in found), form


def test_predictions_are_bytes_over_bandwidth():
    link = scaling.Link(8, 100.0, 10.0, "chip", 1000.0)
    reduced = {"all-reduce": {"count": 1, "received": 300}}
    gathered = {"all-gather": {"count": 1, "received": 50}, "all-to-all": {"received": 150}}
    ring = {"collective-permute": {"count": 7, "received": 70}}
    found = scaling.predicted(
        link,
        {"flops": 800.0, "collectives": reduced | gathered},
        {"flops": 800.0, "collectives": reduced | ring},
    )
    assert found == {"compute": 2.0, "gradients": 3.0, "gathered": 2.0, "ring": 7.0}


def test_steps_are_predicted_for_links_that_join_the_devices(capsys, monkeypatch, tmp_path):
    def worker(options):
        held = dict.fromkeys(("argument_bytes", "output_bytes", "temporary_bytes"), 1)
        reduced = {"all-reduce": {"count": 1, "received": 9}}
        record = {"what": "step", "devices": options["devices"], "flops": 1e12} | held
        return [record | {"form": form, "collectives": reduced} for form in scaling.FORMS]

    monkeypatch.setattr(scaling, "_worker", worker)
    scaling.scaling(devices=(1, 8, 64), out=tmp_path)
    lines = capsys.readouterr().out.split("predicted")[1].splitlines()
    for name, link in scaling.LINKS.items():
        assert sum(line.startswith(name) for line in lines) == (1 if link.devices == 8 else 2)
    with pytest.raises(UserError, match="--devices"):
        scaling.scaling(devices=(0,), out=tmp_path)


@pytest.mark.slow
def test_command_compiles_and_writes(capsys, tmp_path):
    options = ["--devices", "2", "--batch-per-device", "4", "--dim", "8", "--no-step"]
    assert run_py.main(["bench", "scaling", *options, "--out", str(tmp_path)]) == 0
    records = json.loads((tmp_path / "scaling.json").read_text())["records"]
    found = {(record["what"], record["form"], record["devices"]) for record in records}
    programs = ("align+uniform", "contrastive")
    assert found == {(what, form, 2) for what in programs for form in scaling.FORMS}
    said = capsys.readouterr().out
    assert all(f"{what}: MB" in said for what in programs) and "predicted" not in said
    with pytest.raises(UserError, match="small_alexnet needs images"):
        scaling.scaling(devices=(1,), model="small_alexnet", image_size=4, out=tmp_path)
