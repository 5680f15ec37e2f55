"""docs/results.md and the README's claims, from what `python run.py reproduce` has written.

    python -m experiments.results_page record wang-isola/figure7 laptop
    python -m experiments.results_page again wang-isola/figure7 laptop
    python -m experiments.results_page

The first keeps a result in docs/results/, with the predictions of its encoders; the second computes
it anew from these, for sentences and pictures that have changed; the last writes the pages from all
that are kept. So the pages hold what the commands print, and a test makes them again.
"""

import csv
import re
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image

from experiments import plans, predictions
from experiments.reproduce import (
    PAPERS,
    PREDICTIONS,
    REPRODUCTIONS,
    RESULT,
    ROWS,
    result_folder,
    result_of,
    written,
)
from experiments.reproduction import Context
from experiments.statistics import Rows
from experiments.tables import value_of
from hypersphere_jax.configs import require
from hypersphere_jax.data import EMBEDDED
from hypersphere_jax.reporting.tables import format_value
from hypersphere_jax.utils.files import read_json, write_json

ROOT = Path(__file__).parent.parent
# Three or more in a sentence, each with a semicolon after it but the last.
_COMPARISONS = re.compile(
    r"(in this order(?:, of which the first two decide)?), "
    r"((?:(?:(?!\. [A-Z])[^;])+; ){2,}(?:(?!\. [A-Z])[^;])+?)\.(?= |$) ?"
)
PAGE, README = ROOT / "docs" / "results.md", ROOT / "README.md"
# Of the README: items, and what their papers claim.
HEADLINES = {
    "wang-isola/figure5a": "low L_align and low L_uniform make the better encoders",
    "wang-isola/figure7": "accuracy is an inverted U over the weights of alignment and uniformity",
    "wang-isola/table1": "align + uniform beats the contrastive loss",
    "chen/tableD1": "five contrastive losses are about equally good",
    "balanced/table3": "the balanced contrastive loss beats NT-Xent",
}

COLORS = 256  # of a picture that is kept: a third of the bytes, and hardly another look
MARK = "<!-- from here on written by experiments/results_page.py -->\n"
CLAIMS = "<!-- claims -->\n", "\n<!-- end of claims -->"


def page() -> str:
    """The whole page: what is above the mark, the verdicts, and the results."""
    introduction, _, _ = PAGE.read_text().partition(MARK)
    kept = [
        (name, scale, path)
        for name, reproduction in REPRODUCTIONS.items()
        for scale in reproduction.scales
        if (path := plans.kept(name, scale)).is_dir()
    ]
    overview = [["item", "here"], ["---"] * 2]
    for name, _, path in kept:
        result = read_json(path / RESULT)
        overview.append([f"[{name}](#{_anchor(_heading(name, result))})", _summary(result)])
    return "\n".join([introduction + MARK, _table(overview) + "\n", *(_section(*k) for k in kept)])


def readme() -> str:
    """The README with the claims of `HEADLINES`, in the words of what is kept."""
    rows = [["claim", "here"], ["---"] * 2]
    for name, claim in HEADLINES.items():
        result = read_json(plans.kept(name, "laptop") / RESULT)
        where = f"docs/results.md#{_anchor(_heading(name, result))}"
        rows.append([f"{claim} ([{name}]({where}))", _summary(result)])
    before, rest = README.read_text().split(CLAIMS[0])
    return before + CLAIMS[0] + _table(rows) + CLAIMS[1] + rest.split(CLAIMS[1])[1]


def again(item: str, scale: str, pictures: Path | None = None) -> dict:
    """A result computed anew from the rows and predictions that are kept, as in its `RESULT`.

    Its pictures go into a folder, if there is one.
    """
    rows = rows_kept(plans.kept(item, scale))
    with tempfile.TemporaryDirectory() as folder:
        context = Context(scale, Path(folder) / "runs", Path(folder))
        result = result_of(REPRODUCTIONS[item], context, rows)
        if pictures is not None:
            _keep_pictures(Path(folder), pictures)
    return written(result)


def rows_kept(folder: Path) -> Rows:
    """All rows of a result that is kept, with predictions where there are some."""
    with (folder / ROWS).open(newline="", encoding="utf-8") as stream:
        cells = list(csv.DictReader(stream))
    rows = [{name: value_of(cell) for name, cell in row.items() if cell} for row in cells]
    file = folder / PREDICTIONS
    return predictions.read(file, rows) if file.is_file() else rows


def record(item: str, scale: str, out: Path = Path("runs/reproduce")) -> Path:
    """Keeps what was reproduced.

    Raises:
      UserError: when there is nothing, or a part of its runs is missing.
    """
    source, kept = result_folder(out, item, scale), plans.kept(item, scale)
    require((source / RESULT).is_file(), f"no result in {source}: reproduce {item} first")
    part = read_json(source / RESULT, {"part": str | None})["part"]
    require(not part, f"{source}: {part} Do the rest first")
    kept.mkdir(parents=True, exist_ok=True)
    for name in (ROWS, PREDICTIONS, RESULT):
        if (source / name).is_file():
            shutil.copyfile(source / name, kept / name)
    _keep_pictures(source, kept)
    return kept


def _keep_pictures(source: Path, kept: Path) -> None:
    for figure in source.glob("*.png"):
        with Image.open(figure) as picture:
            small = picture.convert("RGB").quantize(COLORS, method=Image.Quantize.MAXCOVERAGE)
        small.save(kept / figure.name, optimize=True)


def _section(name: str, scale: str, path: Path) -> str:
    result = read_json(path / RESULT)
    needs = REPRODUCTIONS[name].scales[scale]
    command = f"python run.py reproduce {name}"
    command += f" --scale {scale}" if needs.stages else ""
    command += " --data-dir DATA" if set(needs.data) - set(EMBEDDED) else ""
    rows = [result["columns"], ["---"] * len(result["columns"])]
    rows += [[format_value(cell) for cell in row] for row in result["rows"]]
    claim, *details = result["text"]
    done = details[:1] if needs.stages else []
    verdict = result["verdict"].rstrip(".")
    parts = [
        f"## {_heading(name, result)}",
        " ".join([claim, *done]),
        _listed(f"**Found:** {verdict}.") if verdict else "",
        *(f"![{caption}](results/{path.name}/{file})" for file, caption in result["figures"]),
        _table(rows),
        *map(_listed, details[len(done) :]),
        f"```\n{command}\n```",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _listed(text: str) -> str:
    """A paragraph with the comparisons of `inference.sentences` as a list, from three on."""
    return _COMPARISONS.sub(
        lambda found: f"{found[1]}:\n\n- " + found[2].replace("; ", "\n- ") + "\n\n", text
    ).strip()


def _heading(name: str, result: dict) -> str:
    return f"{PAPERS[name.partition('/')[0]]}: {result['title']}"


def _summary(result: dict) -> str:
    return result.get("summary") or result["verdict"] or "-"


def _anchor(heading: str) -> str:
    """Of a heading, as GitHub and the site make it."""
    kept = "".join(c for c in heading.lower() if c.isalnum() or c in " -_")
    return kept.replace(" ", "-")


def _table(rows: list[list[str]]) -> str:
    cells = ([cell.replace("|", "\\|") for cell in row] for row in rows)
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


if __name__ == "__main__":
    if sys.argv[1:2] == ["record"]:
        print(record(*sys.argv[2:4]))
    elif sys.argv[1:2] == ["again"]:
        kept = plans.kept(*sys.argv[2:4])
        result = again(*sys.argv[2:4], pictures=kept)
        write_json(kept / RESULT, result | {"part": ""})
        print(result["verdict"])
    else:
        PAGE.write_text(page())
        README.write_text(readme())
        print(PAGE, README)
