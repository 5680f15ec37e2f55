"""Every command of README.md and docs/, run: `python tests/docs_commands.py [PAGE …]`.

A command runs as it stands there, in a folder of its page with small stand-ins for what it names
(PATH, RUN, …), and at toy size: options of `TOY` are added.

An output that a page shows is of a record, docs/results/pages/NAME.txt, which has the commands at
their real size and what they printed: `python tests/docs_commands.py --record NAME [DIR]` makes it
anew, with DIR for the folder of CIFAR-10's zips. The page names it above, `<!-- record: NAME -->`.
"""

import contextlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
RECORDS = ROOT / "docs" / "results" / "pages"
PROGRAM = "python run.py "

# What stands for a placeholder, a word of a command.
STANDINS = {
    "pretrain --name NAME": "pretrain --name fresh",
    "depth RUN RUN RUN": "depth rgb",
    "depth RUN": "depth rgb",
    "features digits": "features run",
    "PATH": "images",
    "DIR": "images",
    "PATH_OF_THE_ZIPS": "images",
    "NAME": "run",
    "RUN": "run",
    "RUN-from-scratch": "run-from-scratch",
    "FILE.npy": "features.npy",
    "FILE.npz": "one.npz",
    "POSITIVES.npy": "positives.npy",
    "LABELS.npy": "labels.npy",
    "BOOKS": "books",
    "RAW": "books",
    "SENTIMENT": "labelled",
    "runs/mine/config.json": "runs/run/config.json",
    "…": "--name other",
    "../shared/data/cifar10": "images",
}
# Options that make a command small: of all whose beginning fits, in this order; the last one wins.
SMALL_TEXT = "--model sentence_gru --dim 8 --embedding 6 --batch-size 8"
SMALL_RESNET = "--width 0.05 --image-size 16 --dtype float32"
TOY = {
    "pretrain": "--epochs 1 --devices 1",
    "pretrain --name": "--width 0.1",
    **dict.fromkeys((f"pretrain --name {name} " for name in "afm"), "--batch-size 400"),
    **dict.fromkeys(
        (f"pretrain --name {name} " for name in ("exact", "fast", "same", "traced")),
        "--batch-size 16 --image-size 8",
    ),
    "pretrain --name mine --data": f"--batch-size 16 {SMALL_RESNET}",
    "pretrain moco": f"--batch-size 16 --queue-size 64 --bn-groups 4 {SMALL_RESNET}",
    "pretrain moco_cifar10/contrastive --data-dir DIR": "--fraction 1 --warmup-epochs 0",
    "pretrain nyu": "--batch-size 4 --width 0.05",
    "pretrain quick": "--batch-size 8 --dim 8 --embedding 6",
    "pretrain --data cifar10": "--batch-size 16 --image-size 32",
    "pretrain … --data": SMALL_TEXT,
    "probe NAME --layers": "--layers output backbone",
    "features NAME --layer": "--layer backbone",
    "finetune": "--epochs 1",
    "finetune RUN --fraction 0.1 --learning-rates": "--name rates",
    "depth": "--epochs 1 --batch-size 4",
    "depth RUN": "--layer conv2 --data nyu_depth_v2 --data-dir nyu_depth_v2_labeled.mat",
    "bench accelerator": "--toy --parts versions peaks",
    "bench losses": "--sizes 128 --dim 16 --rounds 1 --no-memory",
    "bench augment": "--sizes 16 --images 4 --rounds 1 --epoch 8",
    "bench data": "--steps 1 --batch-size 8 --workers 0",
    "bench vmapped": "--encoders 2 --width 0.1 --batch-size 32 --steps 1 --rounds 1",
    "bench probe": "--n 200 --n-test 50 --dim 8 --sklearn-rows 0",
    "bench knn": "--queries 20 --bank 50 --dim 8 --k 1 --rounds 1 --no-memory --compare 10",
    "bench start": "--rounds 1",
    "bench step": "--batch-size 4 --width 0.05 --rounds 1",
    "bench layers": "--batch-size 4 --width 0.05 --rounds 1",
    "bench loop": "--step-ms 1 --steps 20 --model small_cnn",
    "bench text": "--dim 8 --embedding 6 --vocabulary 50 --batch-size 8 --rounds 1",
    "bench convolution": "--batch-size 2 --rounds 1",
    "bench step --model": "--image-size 16",
    "bench scaling": "--devices 2 --batch-per-device 2 --dim 8 --no-step",
    "reproduce wang-isola/figure7": "--dry-run",
}
# Commands that others stand for.
INSTEAD = {
    "pretrain --name mine": "pretrain --name run",
    "pretrain --name mine --workers 4": "pretrain --name run --workers 1",
    "pretrain --name mine --epochs 400": "pretrain --name run --epochs 9 --extend",
    "pretrain … --data books --data-dir RAW": "pretrain --name raw --data books --data-dir books "
    f"--epochs 1 --devices 1 {SMALL_TEXT}",
}
# What is run elsewhere, or needs what a test has not; each with its reason.
NOT_HERE = {
    r"^data prepare ": "needs the network",
    r"--processes auto|--coordinator": "tests/training/test_processes.py starts processes",
    r"^import-torch .*pth": "tests/test_torch_io.py has such files",
    r"^probe moco\b": "likewise",
    r"^quickstart": "CI runs it as it is",
    r"^bench start --data-dir": "minutes of SmallAlexNet and ResNet-18, as they are",
    r"^finetune --name": "tests/test_finetune.py has an interrupted one",
    r"^pretrain EXPERIMENT|--row N$": "a form, not a command",
}


def commands(page: Path) -> list[str]:
    """The commands of a page that call run.py, in order, each once, without comments."""
    text = re.sub(r" *\\\n\s*", " ", page.read_text())
    blocks = re.findall(r"^\s*(?:pip .* && )?(python run\.py .*)$", text, re.MULTILINE)
    inline = re.findall(r"`(python run\.py [^`]*)`", text)
    lines = [" ".join(line.partition(" #")[0].split()) for line in blocks + inline]
    return [line for line in dict.fromkeys(lines) if line != f"{PROGRAM}…"]


def pages() -> list[Path]:
    """All pages with commands of their own; those of results.md are of experiments' tests."""
    all_pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in all_pages if page.name != "results.md" and commands(page)]


def reason_not_here(command: str) -> str | None:
    command = command.removeprefix(PROGRAM)
    return next((why for form, why in NOT_HERE.items() if re.search(form, command)), None)


def toy(command: str) -> list[str]:
    """The arguments of a command at toy size."""
    given = command.removeprefix(PROGRAM)
    if given in INSTEAD:
        return shlex.split(INSTEAD[given])
    more = [options for start, options in TOY.items() if given.startswith(start)]
    for name, standin in STANDINS.items():
        given = re.sub(rf"(?<!\S){re.escape(name)}(?=\s|$)", standin, given)
    return shlex.split(" ".join([given, *more]))


def run(arguments: list[str]) -> tuple[int, str]:
    """Exit status, and what was printed, of a command in this process."""
    from hypersphere_jax import cli

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            status = cli.main(arguments)
        except SystemExit as end:
            status = end.code or 0
    return status, printed.getvalue()


def prepare(folder: Path) -> None:
    """The stand-ins: images, features, text, depth maps, and a finished run."""
    import depth_cases
    import numpy as np
    import tiny_runs
    from PIL import Image

    import hypersphere_jax as hj
    from hypersphere_jax import data
    from hypersphere_jax.data.text.labelled import NAMED
    from hypersphere_jax.training import loop

    rng = np.random.default_rng(0)
    digits, _ = data.arrays.digits()
    for number in range(96):
        split = "train" if number < 64 else "test"
        where = folder / "images" / split / ("even", "odd")[number % 2]
        where.mkdir(parents=True, exist_ok=True)
        small = Image.fromarray(digits[number]["image"][..., 0]).convert("RGB")
        small.resize((32, 32), Image.Resampling.BILINEAR).save(where / f"{number}.png")
    shutil.copytree(folder / "images", folder / "mine")
    shutil.copytree(folder / "images" / "train" / "even", folder / "photos")
    shutil.copy(folder / "photos" / "0.png", folder / "cat.jpg")
    x = rng.standard_normal((2, 60, 8)).astype(np.float32)
    x /= np.linalg.norm(x, axis=-1, keepdims=True)
    y = np.arange(60) % 3
    np.save(folder / "features.npy", x[0])
    np.save(folder / "positives.npy", x[1])
    np.save(folder / "labels.npy", y)
    arrays = {"train_x": x[0], "train_y": y, "test_x": x[1], "test_y": y}
    np.savez(folder / "features.npz", **arrays)
    np.savez(folder / "one.npz", features=x[0], labels=y)
    (folder / "mine.yaml").write_text("name: from-yaml\nepochs: 1\n")
    tiny_runs.write_texts(folder)
    for task in ("mr", "cr"):
        tiny_runs.opinions(folder / "labelled" / NAMED[task])
    mat = folder / "nyu_depth_v2_labeled.mat"
    depth_cases.write_mat(mat, *depth_cases.scenes(24, 120, 160))
    depth_cases.write_splits(folder, range(16), range(16, 24))
    loop.train(tiny_runs.images(folder / "runs", "run"))
    hj.load(folder / "runs" / "run").save(folder / "encoder")
    options = {"dim": 4, "width": 0.1, "image_size": 16, "epochs": 1, "batch_size": 32}
    rgb = {"name": "rgb", "runs_dir": str(folder / "runs"), "data": str(folder / "images")}
    loop.train(hj.PretrainConfig(**rgb, **options))


def run_page(page: Path, prepared: Path, folder: Path) -> Iterator[tuple[str, int, str]]:
    """Each command of a page that can be run here, its exit status, and what it prints."""
    shutil.copytree(prepared, folder, dirs_exist_ok=True)
    with contextlib.chdir(folder):
        for command in commands(page):
            if reason_not_here(command) is None:
                yield command, *run(toy(command))


def columns(text: str) -> set[str]:
    """Of the tables in a text."""
    heads = re.findall(r"^(.*\S.*)\n *─{9}", text, re.MULTILINE)
    return {name for head in heads for name in re.split(r" {2,}", head.strip())}


def record(name: str, data: str) -> None:
    """Runs the commands of a record, its lines that begin with "$", and writes what they print."""
    file = RECORDS / f"{name}.txt"
    lines = []
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "run.py").symlink_to(ROOT / "run.py")
        for command in re.findall(r"^\$ (.*)$", file.read_text(), re.MULTILINE):
            line = re.sub(r"\bDIR\b", shlex.quote(str(Path(data).resolve())), command)
            print(command, file=sys.stderr)
            options = {"cwd": folder, "env": environment, "stdout": subprocess.PIPE}
            done = subprocess.run(line, shell=True, check=True, **options)
            lines += [f"$ {command}", *done.stdout.decode().splitlines(), ""]
    file.write_text("\n".join(line.rstrip() for line in lines))


def shown(page: Path) -> list[tuple[str, str]]:
    """Records that a page names, each with the block or table below its mark."""
    marks = r"^<!-- record: (\w+) -->\n\n?(```\n.*?\n```|(?:\|[^\n]*\n)+)"
    return re.findall(marks, page.read_text(), re.MULTILINE | re.DOTALL)


def main(names: list[str]) -> int:
    if names[:1] == ["--record"]:
        record(names[1], (names[2:] or [""])[0])
        return 0
    chosen = [page for page in pages() if not names or page.stem in names]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HOME"] = folder
        prepared = Path(folder) / "prepared"
        prepared.mkdir()
        prepare(prepared)
        failed = 0
        for page in chosen:
            print(f"== {page.relative_to(ROOT)}")
            known, began = set(), time.monotonic()
            for command, status, printed in run_page(page, prepared, Path(folder) / page.stem):
                failed += bool(status)
                known |= columns(printed)
                print(f"{time.monotonic() - began:5.1f} s  {command}")
                if status:
                    print(f"failed: {shlex.join(toy(command))}\n{printed}")
                began = time.monotonic()
            for name, block in shown(page):
                if gone := columns(block) - known:
                    failed += 1
                    print(f"failed: the table of {name} has columns that are gone: {gone}")
    print(f"{failed} failed")
    return min(failed, 1)


if __name__ == "__main__":
    # Compiling is what this takes; as in conftest.py.
    os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0"
    os.environ |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8"}
    sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]
    sys.exit(main(sys.argv[1:]))
