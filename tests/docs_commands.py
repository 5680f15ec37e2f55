"""Commands of README.md and docs/ at toy size: `python tests/docs_commands.py`.

An output that a page shows comes from a record, docs/results/pages/NAME.txt, which has the commands
at their real size and what they printed: `python tests/docs_commands.py --record NAME [DIR]` makes
it anew, with DIR for the folder of CIFAR-10's zips. Above it the page has `<!-- record: NAME -->`.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
RECORDS = ROOT / "docs" / "results" / "pages"
PROGRAM = "python run.py "

TOY = "--epochs 1 --devices 1 --width 0.1"
# One command per verb. They run in this order in a folder that `prepare` fills.
COMMANDS = f"""
pretrain --name run {TOY}
pretrain --name own --data images --image-size 16 --batch-size 16 {TOY}
probe run --protocols knn --layers output
features run --images images/train/even --out z.npy
metrics z.npy
finetune run --fraction 0.1 --epochs 1
export run --out run.npz
data list
data inspect images
data show images
data prepare-text books --out corpus
report run own
bench losses --losses uniform --sizes 128 --dim 16 --rounds 1
reproduce wang-isola/figure7 --scale laptop --dry-run
"""


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


def shown(page: Path) -> list[tuple[str, str]]:
    """Records that a page names, each with the block or table below its mark."""
    marks = r"^<!-- record: (\w+) -->\n\n?(```\n.*?\n```|(?:\|[^\n]*\n)+)"
    return re.findall(marks, page.read_text(), re.MULTILINE | re.DOTALL)


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


def prepare(folder: Path) -> None:
    """Write small images by split and class, and books."""
    import tiny_runs
    from PIL import Image

    from hypersphere_jax import data

    digits, _ = data.arrays.digits()
    for number in range(48):
        split = "train" if number < 32 else "test"
        where = folder / "images" / split / ("even", "odd")[number % 2]
        where.mkdir(parents=True, exist_ok=True)
        small = Image.fromarray(digits[number]["image"][..., 0]).convert("RGB")
        small.resize((32, 32), Image.Resampling.BILINEAR).save(where / f"{number}.png")
    tiny_runs.write_texts(folder)


def main(names: list[str]) -> int:
    if names[:1] == ["--record"]:
        record(names[1], (names[2:] or [""])[0])
        return 0
    from hypersphere_jax import cli

    failed = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HOME"] = folder
        prepare(Path(folder))
        os.chdir(folder)
        for command in COMMANDS.strip().splitlines():
            print(f"== {command}", flush=True)
            if cli.main(shlex.split(command)):
                failed.append(command)
        os.chdir(ROOT)
    print(*(f"failed: {command}" for command in failed), sep="\n")
    return bool(failed)


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]
    import platforms

    platforms.begin("cpu", 8)  # compiles at XLA's level 0, as conftest.py does
    sys.exit(main(sys.argv[1:]))
