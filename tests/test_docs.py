"""Numbers, commands and links of README.md and docs/; Sybil runs the code blocks."""

import json
import re
import shlex

import matplotlib.pyplot as plt
import pytest
from processes import ROOT

from experiments import quickstart
from experiments.options import QuickstartConfig, ReproduceConfig
from hypersphere_jax import cli, configs
from hypersphere_jax.depth.config import DepthConfig

DOCS = ROOT / "docs"
RESULTS = DOCS / "results"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
CONFIGS = {
    "depth": DepthConfig,
    "export": configs.ExportConfig,
    "features": configs.FeaturesConfig,
    "finetune": configs.FinetuneConfig,
    "import-torch": configs.ImportConfig,
    "metrics": configs.MetricsConfig,
    "pretrain": configs.PretrainConfig,
    "probe": configs.ProbeConfig,
    "quickstart": QuickstartConfig,
    "report": configs.ReportConfig,
    "reproduce": ReproduceConfig,
}


def is_recorded(number, values):
    """Return whether a number, as it is printed, is the rounding of a value."""
    digits, _, exponent = number.replace(",", "").partition("e")
    places = len(digits.partition(".")[2])
    kind = "e" if exponent else "f"
    return number.replace(",", "") in {f"{value:.{places}{kind}}" for value in values}


@pytest.mark.parametrize("path", [path for path in PAGES if "<!-- record:" in path.read_text()])
def test_outputs_show_recorded_numbers(path):
    marks = r"^<!-- record: (\w+) -->\n\n?(```\n.*?\n```|(?:\|[^\n]*\n)+)"
    blocks = re.findall(marks, path.read_text(), re.MULTILINE | re.DOTALL)
    assert blocks
    for name, block in blocks:
        record = (RESULTS / "pages" / f"{name}.txt").read_text()
        values = [float(number) for number in re.findall(r"-?\d+\.\d+", record)]
        for number in re.findall(r"-?\d+\.\d+", block):
            assert is_recorded(number, values), number


def test_readme_shows_the_recorded_quickstart():
    record = json.loads((RESULTS / "quickstart" / "quickstart.json").read_text())
    readme = (ROOT / "README.md").read_text()
    table = readme.split("<!-- quickstart -->\n```\n")[1].split("\n```")[0].splitlines()
    rows = [re.split(r" {2,}", line.strip()) for line in table]
    assert rows[2:] == quickstart.table_rows(record["scores"])


def test_quickstart_uses_the_best_recorded_rates():
    accuracy = json.loads((RESULTS / "quickstart" / "choice.json").read_text())["accuracy"]
    for name, (*_, rate) in quickstart.RUNS.items():
        assert accuracy[name][f"{rate:g}"] == max(accuracy[name].values())


def commands():
    """Return the commands of all pages, without those that contain placeholders."""
    text = "\n".join(path.read_text() for path in PAGES)
    text = re.sub(r" *\\\n\s*", " ", text)
    lines = re.findall(r"python run\.py ([\w-]+ [^`\"\n#&|]*)", text)
    return sorted({line.strip() for line in lines if not re.search(r"…|\[|--config|--help", line)})


@pytest.mark.parametrize("command", [line for line in commands() if line.split()[0] in CONFIGS])
def test_options_of_commands_exist(command):
    name, *arguments = shlex.split(command)
    parse = cli.parse_run if name in ("pretrain", "finetune") else cli.parse
    parse(CONFIGS[name], name, arguments)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_paths_of_tests_exist(path):
    """mkdocs checks the links inside docs/, but not those to other folders, nor the README's."""
    text = path.read_text()
    targets = [path.parent / link for link in re.findall(r"\]\(([^)#:]+)[)#]", text)]
    for command in re.findall(r"python -m pytest ([^`\n]*)", text):
        targets += [ROOT / test for test in re.findall(r"tests/[\w/.]*", command)]
    assert [target for target in targets if not target.exists()] == []


@pytest.mark.slow
def test_tutorial_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plt.switch_backend("agg")
    code = re.sub(r"\bepochs=\d+", "epochs=1", (DOCS / "tutorial.py").read_text())
    names = {"__name__": "tutorial"}
    exec(compile(code.replace("width=0.5", "width=0.1"), "tutorial.py", "exec"), names)
    assert len(names["evaluated"]) == 1 and len(names["h"]) == 397
