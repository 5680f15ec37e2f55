"""docs/results.md, from what `python run.py reproduce` has written.

    python -m experiments.results_page record wang-isola/figure7 laptop
    python -m experiments.results_page

The first keeps the result of an item in docs/results/; the second writes the page from all that is
kept there. So the page holds what the commands print, and a test makes it again.
"""

import re
import shutil
import sys
from pathlib import Path

from experiments.reproduce import FILES, ITEMS, place
from hypersphere_jax import runs
from hypersphere_jax.config import require
from hypersphere_jax.report import text_of

ROOT = Path(__file__).parent.parent
KEPT = ROOT / "docs" / "results"
PAGE = ROOT / "docs" / "results.md"

MARK = "<!-- from here on written by experiments/results_page.py -->\n"


def page() -> str:
    """The whole page: what stands above the mark, and the items."""
    introduction, _, _ = PAGE.read_text().partition(MARK)
    kept = [folder for item in ITEMS for folder in sorted(KEPT.glob(f"{_name(item)}-*"))]
    return "\n".join([introduction + MARK, *(_section(folder) for folder in kept)])


def record(item: str, scale: str, out: Path = Path("runs/reproduce")) -> Path:
    """Keeps what an item has written."""
    source, kept = place(out, item, scale), KEPT / f"{_name(item)}-{scale}"
    require((source / FILES.shown).is_file(), f"no result in {source}: reproduce {item} first")
    kept.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, kept / name)
    return kept


def _section(folder: Path) -> str:
    shown = runs.read_json(folder / FILES.shown)
    command = re.sub(r"--data-dir \S+", "--data-dir DATA", shown["command"])
    rows = [shown["columns"], ["---"] * len(shown["columns"])]
    rows += [[text_of(cell) for cell in row] for row in shown["rows"]]
    claim, *found = shown["text"] or [""]
    parts = [
        f"## {shown['title']}",
        claim,
        f"```\n{command}\n```",
        "\n".join(f"| {' | '.join(row)} |" for row in rows),
        *(f"![{caption}](results/{folder.name}/{name})" for name, caption in shown["figures"]),
        *found,
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _name(item: str) -> str:
    return item.replace("/", "-")


if __name__ == "__main__":
    if sys.argv[1:2] == ["record"]:
        print(record(*sys.argv[2:4]))
    else:
        PAGE.write_text(page())
        print(PAGE)
