"""One command of each kind in the documentation, at toy size."""

import shlex
import shutil

import pytest
import tiny_runs
from PIL import Image

from hypersphere_jax import cli, data

TOY = "--epochs 1 --devices 1 --width 0.1"
# They run in this order, in a folder with images and texts.
COMMANDS = f"""
pretrain --name own --data images --recipe none --image-size 16 --batch-size 16 {TOY}
probe run --protocols knn --layers output
features run --images images/train/even --out z.npy
metrics z.npy
export run --out run.npz
data list
data inspect images
data show images
data prepare-text books --out corpus
report run own
reproduce wang-isola/figure7 --scale laptop --dry-run
"""


def write_images(folder):
    """Write small images as SPLIT/CLASS/file."""
    digits, _ = data.arrays.digits()
    for number in range(48):
        split = "train" if number < 32 else "test"
        images = folder / split / ("even", "odd")[number % 2]
        images.mkdir(parents=True, exist_ok=True)
        digit = Image.fromarray(digits[number]["image"][..., 0]).convert("RGB")
        digit.resize((32, 32)).save(images / f"{number}.png")


@pytest.mark.slow
def test_commands_of_the_docs(short_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(short_run, "runs/run")
    write_images(tmp_path / "images")
    tiny_runs.write_texts(tmp_path)
    for command in COMMANDS.strip().splitlines():
        assert cli.main(shlex.split(command)) == 0, command
