"""GPU checks at toy size, and the PyTorch baseline that they compare with."""

import json
import os
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from processes import python
from scipy import stats

from benchmarks.gpu import runs
from benchmarks.gpu.record import Record
from benchmarks.timing import ROOT
from hypersphere_jax import nt_xent_loss
from hypersphere_jax.augment import RECIPES, make_augment

CHECKS = ("losses", "tests", "cifar10", "wang_isola", "resnet50", "parity")


def read(folder, name):
    """Return the results of a check on this platform."""
    (path,) = folder.glob(f"{name}-*.json")
    return json.loads(path.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKS)
def test_toy_checks_measure_and_write(name, tmp_path):
    """In a process of its own, which has one device."""
    if name == "parity":
        pytest.importorskip("torch")
    done = python("-m", "benchmarks.gpu", name, "--toy", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    results = read(tmp_path, name)
    rows = results["rows"]
    assert results["check"] == name and results["versions"]["jax"] == jax.__version__
    assert not any("failure" in row for row in rows)
    if name == "losses":
        errors = [row["gradient_error"] for row in rows if "gradient_error" in row]
        assert len(errors) == 14 and max(errors) < 1e-5
    elif name == "tests":
        assert rows[-1]["exit_status"] == 0 and rows[-1]["passed"] > 5
    elif name == "resnet50":
        assert [row["method"] for row in rows] == ["SimCLR", "MoCo v2"]
    else:
        scores = [value for row in rows for key, value in row.items() if key.endswith("knn5")]
        assert scores and all(-1 <= score <= 100 for score in scores)
        assert all(np.isfinite(row["loss"]) for row in rows if "epoch_images_per_s" in row)


@pytest.mark.slow
def test_a_killed_check_keeps_its_rows(tmp_path):
    command = [sys.executable, "-m", "benchmarks.gpu", "losses", "--toy", "--out", str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        lines = [process.stdout.readline() for _ in range(3)]
        os.kill(process.pid, signal.SIGKILL)
    assert all(lines)
    assert len(read(tmp_path, "losses")["rows"]) >= 3


def test_record_counts_down_and_is_complete_after_each_row(tmp_path, capsys):
    record = Record("check", tmp_path, minutes=1, width=0.5)
    before = record.seconds_left
    time.sleep(0.01)
    assert record.seconds_left < before <= 60
    for number in range(2):
        record.add(number=number)
        assert [row["number"] for row in read(tmp_path, "check")["rows"]] == [0, 1][: number + 1]
    assert read(tmp_path, "check")["options"] == {"minutes": 1, "width": 0.5}


def test_epochs_are_reported_while_a_run_trains(tmp_path):
    """97 steps an epoch, a line every 10: epochs end between two lines."""
    log = tmp_path / "metrics.jsonl"
    steps = range(10, 10 * 97 + 1, 10)
    lines = [
        {"step": step, "epoch": round(step / 97, 4), "loss": float(step), "images_per_s": 1.0}
        for step in steps
    ]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines[:25]) + '{"step"')
    rows = runs.epoch_rows(log, complete_only=True)
    assert [row["epoch"] for row in rows] == [1, 2]
    assert [row["loss"] for row in rows] == [50.0, 145.0]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert len(runs.epoch_rows(log, complete_only=False)) == 10


def test_a_run_is_stopped_in_time_before_its_first_step():
    started = time.monotonic()
    with runs.stopped_after(0.05):
        while time.monotonic() - started < 600:
            time.sleep(0.01)
    assert time.monotonic() - started < 600


@pytest.mark.slow
def test_a_missing_folder_is_one_line(tmp_path):
    command = [sys.executable, "-m", "benchmarks.gpu", "cifar10", "--data-dir", "missing"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 2 and "missing" in done.stderr and "Traceback" not in done.stderr


def test_torch_nt_xent_is_ours(rng):
    torch = pytest.importorskip("torch")
    from benchmarks.torch_simclr import nt_xent

    x = rng.standard_normal((2, 12, 5)).astype(np.float32)
    z1, z2 = x / np.linalg.norm(x, axis=2, keepdims=True)
    found = float(nt_xent(torch.from_numpy(z1), torch.from_numpy(z2), 0.3))
    assert found == pytest.approx(float(nt_xent_loss(z1, z2, tau=0.3)), rel=1e-5)


def test_torch_hue_and_gray_are_colorsys(rng):
    torch = pytest.importorskip("torch")
    import colorsys

    from benchmarks.torch_augment import grayscale, shift_hue

    images = rng.random((3, 3, 4, 4)).astype(np.float32)
    shift = np.float32([0.07, -0.1, 0.0])[:, None, None]
    found = shift_hue(torch.from_numpy(images), torch.from_numpy(shift)).numpy()
    for image, turned, amount in zip(images, found, shift.ravel(), strict=True):
        for pixel, other in zip(image.reshape(3, -1).T, turned.reshape(3, -1).T, strict=True):
            hue, saturation, value = colorsys.rgb_to_hsv(*map(float, pixel))
            expected = colorsys.hsv_to_rgb((hue + amount) % 1, saturation, value)
            np.testing.assert_allclose(other, expected, atol=1e-5)
    gray = grayscale(torch.from_numpy(images)).numpy()
    np.testing.assert_allclose(
        gray[:, 0], np.tensordot(images, (0.299, 0.587, 0.114), (1, 0)), atol=2e-3
    )


def test_torch_views_are_distributed_as_ours(rng):
    """Mean, contrast, edges and color of many views of one image, by Kolmogorov-Smirnov tests."""
    torch = pytest.importorskip("torch")
    from benchmarks.torch_augment import augment

    torch.manual_seed(0)
    smooth = np.kron(rng.integers(0, 256, (4, 4, 3)), np.ones((4, 4, 1))).astype(np.uint8)
    n = 2000
    batch = torch.from_numpy(np.repeat(smooth[None], n, 0)).permute(0, 3, 1, 2).float() / 255
    theirs = torch.cat([augment(part) for part in batch.split(20)]).permute(0, 2, 3, 1).numpy()
    transform = make_augment(RECIPES["simclr_cifar_torchvision"], 16)
    keys = jax.random.split(jax.random.key(0), n)
    ours = np.asarray(jax.jit(jax.vmap(transform, (0, None)))(keys, smooth))
    for describe in (
        lambda views: views.mean((1, 2, 3)),
        lambda views: views.std((1, 2, 3)),
        lambda views: np.abs(np.diff(views, axis=2)).mean((1, 2, 3)),
        lambda views: np.ptp(views, axis=3).mean((1, 2)),
    ):
        assert stats.ks_2samp(describe(ours), describe(theirs)).pvalue > 1e-4
