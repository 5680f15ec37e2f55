"""The pages of docs/: their snippets run and print what they say, and what they name exists."""

import contextlib
import csv
import inspect
import io
import json
import re

import docs_commands
import jax
import numpy as np
import pytest
from docs_snippets import code_of
from processes import ROOT, python

import hypersphere_jax
from experiments import quickstart
from hypersphere_jax import theory

PAGE = (ROOT / "docs" / "losses.md").read_text()


DOCS = ROOT / "docs"
PAGES = [str(path.relative_to(ROOT)) for path in sorted(DOCS.rglob("*.md"))]
# Pages with blocks that the fast tests run.
FAST = ("docs/data.md", "docs/text.md", "docs/reference/config.md")
PRINTING = [page for page in PAGES if re.search(r"^ *print\(.*\)  # ", code_of(page), re.MULTILINE)]
TRAINING = [page for page in PAGES if code_of(page) and page not in (*FAST, *PRINTING)]


def run_blocks(page):
    """Run a page's Python blocks as one program, and return what they print."""
    printed = io.StringIO()
    # A user's JAX promotes ranks, which the suite forbids.
    with contextlib.redirect_stdout(printed), jax.numpy_rank_promotion("allow"):
        exec(compile(code_of(page), page, "exec"), {"__name__": page})
    return printed.getvalue().splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("page", PRINTING)
def test_blocks_print_their_comments(page):
    code = code_of(page)
    comments = re.findall(r"^ *print\(.*\)  # (.*)$", code, re.MULTILINE)
    assert len(comments) == code.count("print(")
    assert run_blocks(page) == [line for comment in comments for line in comment.split(" / ")]


@pytest.mark.parametrize("page", FAST)
def test_blocks_run(page):
    assert code_of(page)
    run_blocks(page)


@pytest.mark.slow
def test_blocks_that_train_run_on_one_device(tmp_path):
    pages = [*TRAINING, "README.md", "docs/tutorial.py"]
    done = python("tests/docs_snippets.py", str(tmp_path), *pages)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_loss_stands_in_the_table():
    rows = re.findall(r"^\| `(\w+_loss)` \|", PAGE, re.MULTILINE)
    assert sorted([*rows, "l2_normalize"]) == sorted(hypersphere_jax.__all__)


def test_every_function_of_theory_stands_in_its_table():
    public = {
        name
        for name, function in inspect.getmembers(theory, inspect.isfunction)
        if function.__module__ == theory.__name__ and not name.startswith("_")
    }
    rows = re.findall(r"^\| (`.*?) \|", PAGE.split("## Theory")[1], re.MULTILINE)
    assert public == set(re.findall(r"`(\w+)", " ".join(rows)))


def test_identities_name_their_tests():
    """Wherever these are; and none of the identities is left out."""
    section = PAGE.split("## Identities")[1].split("\n## ")[0]
    named = set(re.findall(r"`(test_\w+)`", section))
    tests = {
        path.name: set(re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE))
        for path in (ROOT / "tests").rglob("test_*.py")
    }
    assert named <= set.union(*tests.values())
    left_out = tests["test_loss_identities.py"] - named
    assert not {name for name in left_out if not name.endswith("_over_devices")}


README = (ROOT / "README.md").read_text()


def anchors(page):
    """Those that GitHub and the site give to a page's headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


def test_readme_says_what_was_recorded():
    """The quickstart's table is that of the record."""
    assert len(README.splitlines()) <= 120
    record = json.loads((ROOT / "docs/results/quickstart/quickstart.json").read_text())
    table = README.split("<!-- quickstart -->\n```\n")[1].split("\n```")[0].splitlines()
    cells = [re.split(r" {2,}", line.strip()) for line in table]
    assert cells[0] == quickstart.COLUMNS and cells[2:] == quickstart.table_rows(record["scores"])
    wall, processor = record["seconds"], record["processor_seconds"]
    took = f"{wall} s and {processor} s of processor time"
    assert took in (DOCS / "performance.md").read_text()
    chosen = json.loads((ROOT / "docs/results/quickstart/choice.json").read_text())
    choice = chosen["accuracy"]
    assert chosen["seeds"] == list(range(8))
    for name, (*_, rate) in quickstart.RUNS.items():
        assert list(choice[name]) == [f"{rate:g}" for rate in quickstart.RATES]
        assert f"{rate:g}" == max(reversed(choice[name]), key=choice[name].get)


def test_repetitions_differ_as_the_page_says():
    """Runs of the same config that were trained twice, by two versions of the code."""

    def accuracies(file, layer):
        with (DOCS / "results" / file).open(newline="") as stream:
            return {
                (row["run"], row.get("step") == "0"): float(row[f"{layer}_logistic"])
                for row in csv.DictReader(stream)
                if row[f"{layer}_logistic"]
            }

    page = " ".join((DOCS / "results.md").read_text().split())
    told = []
    for layer in ("backbone", "output"):
        files = (f"chen-figureB2-laptop/{name}.csv" for name in ("before", "again"))
        one, other = (accuracies(file, layer) for file in files)
        apart = [abs(one[key] - other[key]) for key in one.keys() & other.keys()]
        assert len(apart) == 30
        told += [f"{np.mean(apart):.2f}", f"{max(apart):.2f}"]
    mean, most, *of_output = told
    assert f"differ by {mean} points on average ({most} at most) before the head" in page
    assert "by {} ({} at most) on the output".format(*of_output) in page


def test_pages_name_files_that_exist():
    modules = {str(path.relative_to(ROOT)) for path in ROOT.rglob("*.py")}
    named = re.findall(r"`([a-z_/0-9]+\.py)`", (ROOT / "docs" / "code.md").read_text())
    assert not [n for n in named if not any(f"/{module}".endswith(f"/{n}") for module in modules)]
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        for link, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text()):
            target = page.parent / link if link else page
            assert target.exists(), (page.name, link)
            if anchor and "." not in anchor:  # that of a Python object is the site's
                assert anchor in anchors(target), (page.name, link, anchor)


PAGES = docs_commands.pages()


def test_pages_show_what_was_recorded():
    """An output is its record's, number by number; a record's commands stand on the page."""
    named = set()
    for page in PAGES:
        for name, block in docs_commands.shown(page):
            named.add(name)
            record = (docs_commands.RECORDS / f"{name}.txt").read_text()
            if block.startswith("```"):
                assert block.strip("`\n") in record, page
            values = [float(each) for each in re.findall(r"-?\d+\.\d+", record)]
            for number in re.findall(r"-?\d+\.\d+", block):
                digits = len(number.partition(".")[2])
                assert number in {f"{value:.{digits}f}" for value in values}, (page, number)
            commands = " ".join(docs_commands.commands(page))
            for command in re.findall(r"^\$ (python .*)$", record, re.MULTILINE):
                assert command in commands, command
    assert named == {path.stem for path in docs_commands.RECORDS.glob("*.txt")}


def test_commands_of_pytest_name_tests_that_exist():
    for page in (ROOT / "README.md", *DOCS.rglob("*.md")):
        for command in re.findall(r"`python -m pytest ([^`]*)`", page.read_text()):
            for path in re.findall(r"tests/[\w/.]*", command):
                assert (ROOT / path).exists(), (page, path)
