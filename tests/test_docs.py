"""The pages of docs/: their snippets run and print what they say, and what they name exists."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hypersphere_jax
from hypersphere_jax import bounds, theory

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "losses.md").read_text()
# As a user with four devices would have it, whatever the machine has.
PREAMBLE = """
import jax
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
"""


def test_snippets_print_what_stands_beside_them():
    snippets = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    code = "\n".join(snippets)
    # A print in a loop has its lines parted by slashes.
    comments = re.findall(r"^ *print\(.*\)  # (.*)$", code, re.MULTILINE)
    expected = [line for comment in comments for line in comment.split(" / ")]
    assert len(snippets) >= 6 and len(comments) == code.count("print(")
    done = subprocess.run(
        [sys.executable, "-c", PREAMBLE + code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == expected


@pytest.mark.parametrize("page", ["data", "text", "augmentation", "evaluation"])
def test_snippets_run(page):
    text = (ROOT / "docs" / f"{page}.md").read_text()
    code = "\n".join(re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    assert code
    subprocess.run([sys.executable, "-c", PREAMBLE + code], cwd=ROOT, check=True, timeout=300)


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
    section = PAGE.split("## Theory")[1]
    rows = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    named = re.findall(r"`(?:bounds\.)?(\w+)", " ".join(rows))
    assert public == set(named)


def test_identities_name_their_tests():
    section = PAGE.split("## Identities")[1].split("\n## ")[0]
    named = set(re.findall(r"`(test_\w+)`", section))
    tests = {
        path: set(re.findall(r"^def (test_\w+)", (ROOT / "tests" / path).read_text(), re.MULTILINE))
        for path in ("test_loss_identities.py", "test_theory.py", "test_theory_features.py")
    }
    assert named <= set.union(*tests.values())
    # The page leaves out none of the identities; what is tested over devices is none.
    left_out = tests["test_loss_identities.py"] - named
    assert left_out == {"test_generalized_contrastive_loss_over_devices"}
