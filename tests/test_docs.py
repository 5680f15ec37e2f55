"""The pages of docs/: their snippets run and print what they say, and what they name exists."""

import contextlib
import inspect
import io
import re

import jax
import pytest
from processes import ROOT

import hypersphere_jax
from hypersphere_jax import bounds, theory

PAGE = (ROOT / "docs" / "losses.md").read_text()


def run_snippets(page):
    """A page's snippets in one program; their code, and what they print."""
    text = (ROOT / "docs" / f"{page}.md").read_text()
    code = "\n".join(re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    printed = io.StringIO()
    # A user's JAX promotes ranks, which the suite forbids.
    with contextlib.redirect_stdout(printed), jax.numpy_rank_promotion("allow"):
        exec(compile(code, f"{page}.md", "exec"), {"__name__": page})
    return code, printed.getvalue().splitlines()


@pytest.mark.slow
def test_snippets_print_what_stands_beside_them():
    code, printed = run_snippets("losses")
    comments = re.findall(r"^ *print\(.*\)  # (.*)$", code, re.MULTILINE)
    assert len(comments) == code.count("print(")
    assert printed == [line for comment in comments for line in comment.split(" / ")]


def test_snippets_run():
    for page in ("data", "text", "augmentation", "evaluation"):
        assert run_snippets(page)[0]  # their assertions are their own


def test_every_loss_stands_in_the_table():
    rows = re.findall(r"^\| `(\w+_loss)` \|", PAGE, re.MULTILINE)
    assert sorted([*rows, "l2_normalize"]) == sorted(hypersphere_jax.__all__)


def test_every_function_of_theory_stands_in_its_table():
    public = {
        name
        for module in (theory, bounds)
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and not name.startswith("_")
    }
    rows = re.findall(r"^\| (`.*?) \|", PAGE.split("## Theory")[1], re.MULTILINE)
    assert public == set(re.findall(r"`(?:bounds\.)?(\w+)", " ".join(rows)))


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
