"""Run the Python blocks of the documentation on one device, each page in a folder of its own.

    python tests/docs_snippets.py FOLDER PAGE …

One process runs all pages, because starting JAX takes longer than most of them.
"""

import os
import re
import sys
from pathlib import Path

import jax
import numpy as np

ROOT = Path(__file__).resolve().parent.parent


def code_of(page: str) -> str:
    """Return the Python blocks of a page as one program."""
    text = (ROOT / page).read_text()
    return "\n".join(re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))


def run_readme() -> None:
    """Run the README's blocks on separable features and random images."""
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 10
    x = np.eye(10, dtype=np.float32)[labels] + 0.1 * rng.standard_normal((60, 10), np.float32)
    names = {"train_x": x[:40], "train_y": labels[:40], "test_x": x[40:], "test_y": labels[40:]}
    names |= {"images": rng.integers(0, 256, (320, 8, 8, 1), np.uint8), "labels": np.arange(320)}
    exec(compile(code_of("README.md").replace("epochs=10", "epochs=1"), "README.md", "exec"), names)
    assert names["linear"] == names["nearest"] == 100 and np.isfinite(names["loss"])
    assert names["z"].shape == (320, 32) and names["geometry"]["n"] == 320


def run_tutorial() -> None:
    """Run the tutorial's cells with one epoch and a narrow network."""
    import matplotlib.pyplot as plt

    plt.switch_backend("agg")
    code = re.sub(r"epochs=\d+", "epochs=1", (ROOT / "docs" / "tutorial.py").read_text())
    names = {"__name__": "tutorial"}
    exec(compile(code.replace("width=0.5", "width=0.1"), "tutorial.py", "exec"), names)
    assert len(names["evaluated"]) == 1 and len(names["h"]) == 397


def run_page(page: str) -> None:
    if page == "README.md":
        run_readme()
    elif page.endswith(".py"):
        run_tutorial()
    else:
        exec(compile(code_of(page), page, "exec"), {"__name__": page})


def main(folder: str, *pages: str) -> None:
    sys.path.insert(0, str(ROOT))  # the pages run in other folders
    for page in pages:
        print(page, flush=True)
        own = Path(folder) / page
        own.mkdir(parents=True)
        os.chdir(own)
        run_page(page)
        jax.clear_caches()


if __name__ == "__main__":
    main(*sys.argv[1:])
