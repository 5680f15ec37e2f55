"""GPU checks at toy size, and the PyTorch baseline that they compare with."""

import colorsys
import json
import time

import jax
import numpy as np
import pytest
from platforms import LEVEL
from processes import environment, python
from scipy import stats

from benchmarks.gpu import runs
from benchmarks.gpu.encoders import Cifar10
from benchmarks.gpu.record import Check, Record
from hypersphere_jax import nt_xent_loss
from hypersphere_jax.augment import RECIPES, make_augment
from hypersphere_jax.configs import UserError


def read_rows(folder, name):
    """Return the rows that a check has written."""
    (path,) = folder.glob(f"{name}-*.json")
    return json.loads(path.read_text())["rows"]


def run_toy(name, folder):
    """Run a check at toy size and return its rows."""
    command = ["-m", "benchmarks.gpu", name, "--toy", "--minutes", "60", "--out", str(folder)]
    done = python(*command, env=environment(XLA_FLAGS=f"{LEVEL}=0"))
    assert done.returncode == 0, done.stderr
    rows = read_rows(folder, name)
    assert not any("failure" in row for row in rows)
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cifar10", "wang_isola", "parity"])
def test_toy_runs_are_trained_and_evaluated(name, tmp_path):
    if name == "parity":
        pytest.importorskip("torch")
    rows = run_toy(name, tmp_path)
    scores = [value for row in rows for key, value in row.items() if key.endswith("knn5")]
    assert scores and all(-1 <= score <= 100 for score in scores)
    assert all(np.isfinite(row["loss"]) for row in rows if "epoch_images_per_s" in row)


@pytest.mark.slow
def test_toy_losses_are_precise(tmp_path):
    rows = run_toy("losses", tmp_path)
    errors = [row["gradient_error"] for row in rows if "gradient_error" in row]
    assert len(errors) == 14 and max(errors) < 1e-5


@pytest.mark.slow
def test_toy_suite_passes(tmp_path):
    row = run_toy("tests", tmp_path)[-1]
    assert row["exit_status"] == 0 and row["passed"] > 5


@pytest.mark.slow
def test_toy_steps_are_measured(tmp_path):
    rows = run_toy("resnet50", tmp_path)
    assert [row["method"] for row in rows] == ["SimCLR", "MoCo v2"]
    assert all(row["share"] > 0 and row["images_per_s"] > 0 for row in rows)


def test_missing_folder_is_refused(tmp_path):
    with pytest.raises(UserError, match="missing"):
        Cifar10(data_dir=tmp_path / "missing", out=tmp_path).run()


def test_record_is_written_after_each_row(tmp_path):
    record = Record("check", Check(minutes=1, out=tmp_path))
    for number in range(2):
        record.add(number=number)
        assert [row["number"] for row in read_rows(tmp_path, "check")] == [0, 1][: number + 1]
    assert json.loads(record.path.read_text())["options"]["minutes"] == 1


def test_epoch_rows_of_a_log():
    """97 steps per epoch, a line every 10 steps: epochs end between two lines."""
    steps = range(10, 971, 10)
    rows = runs.epoch_rows([{"epoch": round(step / 97, 4), "loss": step} for step in steps])
    assert [row["epoch"] for row in rows] == list(range(1, 11))
    assert [row["loss"] for row in rows[:2]] == [50.0, 145.0]


def test_run_is_stopped_before_its_first_step():
    with runs.stopped_after(0.05):
        time.sleep(600)
        pytest.fail("not stopped")


def test_torch_nt_xent_is_ours(rng):
    torch = pytest.importorskip("torch")
    from benchmarks.torch_simclr import nt_xent

    x = rng.standard_normal((2, 12, 5)).astype(np.float32)
    z1, z2 = x / np.linalg.norm(x, axis=2, keepdims=True)
    found = float(nt_xent(torch.from_numpy(z1), torch.from_numpy(z2), 0.3))
    assert found == pytest.approx(float(nt_xent_loss(z1, z2, tau=0.3)), rel=1e-5)


def test_torch_hue_is_colorsys(rng):
    torch = pytest.importorskip("torch")
    from benchmarks.torch_augment import shift_hue

    pixels = rng.random((20, 3)).astype(np.float32)
    shift = np.linspace(-0.1, 0.1, 20, dtype=np.float32)
    images = torch.from_numpy(pixels)[:, :, None, None]
    found = shift_hue(images, torch.from_numpy(shift)[:, None, None]).numpy()[:, :, 0, 0]
    for pixel, amount, shifted in zip(pixels, shift, found, strict=True):
        hue, saturation, value = colorsys.rgb_to_hsv(*map(float, pixel))
        expected = colorsys.hsv_to_rgb((hue + amount) % 1, saturation, value)
        np.testing.assert_allclose(shifted, expected, atol=1e-5)


def test_torch_views_are_distributed_as_ours(rng):
    """Mean, contrast, edges and color of many views of one image, by Kolmogorov-Smirnov tests."""
    torch = pytest.importorskip("torch")
    from benchmarks.torch_augment import augment

    def describe(views):
        edges = np.abs(np.diff(views, axis=2)).mean((1, 2, 3))
        color = np.ptp(views, axis=3).mean((1, 2))
        return views.mean((1, 2, 3)), views.std((1, 2, 3)), edges, color

    torch.manual_seed(0)
    image = np.kron(rng.integers(0, 256, (4, 4, 3)), np.ones((4, 4, 1))).astype(np.uint8)
    batch = torch.from_numpy(np.repeat(image[None], 2000, 0)).permute(0, 3, 1, 2).float() / 255
    theirs = torch.cat([augment(part) for part in batch.split(20)]).permute(0, 2, 3, 1).numpy()
    transform = make_augment(RECIPES["simclr_cifar_torchvision"], 16)
    keys = jax.random.split(jax.random.key(0), 2000)
    ours = np.asarray(jax.jit(jax.vmap(transform, (0, None)))(keys, image))
    for one, other in zip(describe(ours), describe(theirs), strict=True):
        assert stats.ks_2samp(one, other).pvalue > 1e-4
