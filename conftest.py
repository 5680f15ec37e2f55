"""Run the Python blocks of README.md and docs/ with Sybil: `python -m pytest README.md docs`.

Blocks of a page share their names and run in an empty folder, at toy size. Where a block prints,
the comment behind each `print` is what it prints; " / " separates the lines of a loop.
"""

import contextlib
import io
import os
import re
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
from sybil import Document, Example, Sybil
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown import CodeBlockParser

ROOT = Path(__file__).parent
# Python files in docs/ are scripts without doctests.
collect_ignore_glob = ["docs/*.py"]


class ToyDocument(Document):
    """A page whose runs train for one epoch."""

    def __init__(self, text: str, path: str) -> None:
        text = re.sub(r"\bepochs=\d+", "epochs=1", text)
        super().__init__(text, path)


def evaluate(example: Example) -> str | None:
    """Run a block, and compare what it prints with its comments."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), jax.numpy_rank_promotion("allow"):
        PythonEvaluator()(example)
    comments = re.findall(r"^ *print\(.*\)  # (.*)$", example.parsed, re.MULTILINE)
    expected = [line for comment in comments for line in comment.split(" / ")]
    lines = printed.getvalue().splitlines()
    if comments and lines != expected:
        return f"prints {lines}, not {expected}"
    return None


def enter_folder(namespace: dict[str, Any]) -> None:
    namespace["__folder__"] = folder = tempfile.TemporaryDirectory()
    os.chdir(folder.name)


def leave_folder(namespace: dict[str, Any]) -> None:
    os.chdir(ROOT)
    namespace["__folder__"].cleanup()
    jax.clear_caches()


def enter_readme(namespace: dict[str, Any]) -> None:
    """Add the arrays that the README expects: random images and separable features."""
    enter_folder(namespace)
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 10
    features = np.eye(10, dtype=np.float32)[labels] + rng.normal(scale=0.1, size=(60, 10))
    namespace["train_x"], namespace["test_x"] = np.split(features, [40])
    namespace["train_y"], namespace["test_y"] = np.split(labels, [40])
    namespace["images"] = rng.integers(0, 256, (320, 8, 8, 1), np.uint8)
    namespace["labels"] = np.arange(320)


PARSER = CodeBlockParser("python", evaluate)
OPTIONS = {"parsers": [PARSER], "document_types": {".md": ToyDocument}, "teardown": leave_folder}
README = Sybil(filenames=["README.md"], setup=enter_readme, **OPTIONS)
PAGES = Sybil(patterns=["docs/*.md", "docs/*/*.md"], setup=enter_folder, **OPTIONS)
pytest_collect_file = (README + PAGES).pytest()
