"""Tables on the terminal, and the pages of runs: what stands in them, from which file."""

import html
import json
import re
from base64 import b64decode

import numpy as np
import pytest

from hypersphere_jax import plots, report
from hypersphere_jax.config import UserError
from hypersphere_jax.evaluate import results_file


def parsed(path):
    """A page's tags, its text, and its pictures."""
    page = path.read_text(encoding="utf-8")
    texts = [html.unescape(text).strip() for text in re.split("<[^>]*>", page)]
    pictures = re.findall(r'src="data:image/png;base64,([^"]*)"', page)
    return {*re.findall(r"<(\w+)", page)}, [*filter(None, texts)], [*map(b64decode, pictures)]


@pytest.fixture
def curves(monkeypatch):
    """What training curves are asked for; a file stands for each picture."""
    asked = []

    def draw(runs, path):
        asked.append(runs)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"curves")

    monkeypatch.setattr(plots, "training_curves", draw)
    return asked


def make_run(folder, seed=0, loss=1.0):
    sessions = [{"started": f"day {seed}", "command": f"python {n}"} for n in ("first", "last")]
    config = {"name": folder.name, "seed": seed, "model": {"dim": 32, "init_from": None}}
    probe = {"split": "test", "chosen": {"C": 1e-4}, "top1": 97.25, "n": 397}
    metrics = {"align": 0.21, "uniform": -3.7, "uniform_optimum": -3.875}
    (folder / "eval").mkdir(parents=True)
    for name, lines in {
        "config.json": [{"config": config, "sessions": sessions}],
        "metrics.jsonl": [{"step": 10 * i, "loss": loss / (i + 1), "align": 0.5} for i in range(5)],
        "eval/lbfgs.json": [{"run": folder.name, "protocol": "lbfgs"} | probe],
        "eval/metrics.json": [{"protocol": "metrics"} | metrics],
    }.items():
        (folder / name).write_text("\n".join(map(json.dumps, lines)) + "\n")
    return folder


def test_table_is_plain_text_in_a_file(capsys):
    rows = [["a [B]", 97.2, 397], ["b", 100.0, 10_000], [None, np.float32(9.5), np.int64(7)]]
    report.print_table(["method", "top-1 (%)", "n"], rows, title="Table 1 [digits]")
    title, _, _, *lines = capsys.readouterr().out.splitlines()
    found = [" ".join(line.split()) for line in lines[:3]]
    assert [title, *found] == ["Table 1 [digits]", "a [B] 97.20 397", "b 100.0 10000", "- 9.500 7"]
    assert report.with_error(-3.69712, 0.0021) == "-3.6971 ± 0.0021"
    assert report.with_error(2.0, None) == "2.0000"


def test_table_of_a_narrow_terminal_has_a_line_a_row(monkeypatch, capsys):
    """Long texts are cut off there, names and numbers are not."""
    monkeypatch.setattr(report.sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "60")
    rows = [["name_" * 5, "many words " * 20, 1234567]] * 2
    report.print_table(["run", "loss", "steps"], rows)
    _, _, *lines = capsys.readouterr().out.splitlines()
    assert [len(line) <= 60 and "name_" * 5 in line and "…" in line for line in lines[:2]]
    assert all("1234567" in line for line in lines[:2]) and not "".join(lines[2:]).strip()


def test_page_holds_its_blocks_and_nothing_from_outside(tmp_path):
    picture = tmp_path / "picture.png"
    picture.write_bytes(b"a picture")
    blocks = [
        ("heading", "Results"),
        ("text", "Alignment < uniformity & so on."),
        ("table", ["name", "top-1 (%)"], [["<script>alert(1)</script>", 97.25], ["b", None]]),
        ("figure", picture, 'A "caption"'),
        ("config", {"model": {"dim": 32, "layers": [1, 2]}, "<i>": None}),
        ("command", "python run.py probe runs/a && echo done"),
    ]
    path = report.write_page(tmp_path / "new" / "page.html", "Run <b>1</b>", blocks)
    tags, text, pictures = parsed(path)
    assert pictures == [b"a picture"] and 'alt="A &quot;caption&quot;"' in path.read_text()
    assert "http" not in path.read_text() and "url(" not in path.read_text()
    assert not tags & {"script", "b", "i", "link"}
    said = {"Run <b>1</b>", blocks[1][1], "<script>alert(1)</script>", "97.25"}
    assert said | {"model.layers", "[1, 2]", "<i>", blocks[5][1]} <= set(text)
    # It is replaced whole or not at all.
    with pytest.raises(FileNotFoundError):
        report.write_page(path, "new", [("figure", tmp_path / "missing.png", "none")])
    assert "Results" in path.read_text() and list(path.parent.iterdir()) == [path]


def test_run_report_shows_the_run(tmp_path, curves):
    run = make_run(tmp_path / "digits & <more>")
    (run / "figures").mkdir()
    (run / "figures" / "metrics.png").write_bytes(b"metrics")
    _, text, pictures = parsed(report.run_report(run))
    assert pictures == [b"curves", b"metrics"]
    assert [record["step"] for record in curves[0][run.name]] == [0, 10, 20, 30, 40]
    assert {run.name, "97.25", "C=0.0001", "-3.875", "config.model.init_from", "day 0"} <= set(text)
    assert any("step=40, loss=0.2" in said for said in text)
    # What to type next: the last session's command continues the run.
    assert text[-1].splitlines()[::3] == [f"python run.py probe '{run}'", "python last"]
    (run / "metrics.jsonl").write_text(  # as a kill leaves it
        '{"step": 10, "loss": 4.0}\n{"step": 20, "lo\n{"step": 30, "loss": NaN}\n{"step": 40, "l'
    )
    assert "not finite at step 30" in report.run_report(run).read_text()
    assert [record["step"] for record in curves[1][run.name]] == [10, 30]
    (run / "eval" / "knn.json").write_text('{"top1": 9')
    with pytest.raises(UserError, match=r"eval/knn\.json"):
        report.run_report(run)


def test_runs_are_compared(tmp_path, curves):
    """In a table of each protocol, and on a page with what differs."""
    runs = [make_run(tmp_path / f"run{seed}", seed, seed + 1) for seed in (3, 4)]
    scores = [[run.name, "lbfgs", "test", 97.25, 397, {"C": 1e-4}] for run in runs]
    metrics = [[run.name, "metrics", 0.21, -3.7, -3.875] for run in runs]
    assert report.eval_tables(runs) == {  # groups stand last
        "lbfgs": (["run", "file", "split", "top-1 (%)", "n", "chosen"], scores),
        "metrics": (["run", "file", "align", "uniform", "optimal uniform"], metrics),
    }
    _, text, pictures = parsed(report.sweep_report(runs, tmp_path / "sweep.html", "Two seeds"))
    assert pictures == [b"curves"] and (tmp_path / "sweep_curves.png").is_file()
    assert [records[0]["loss"] for records in curves[0].values()] == [4, 5]
    assert text.count("lbfgs") == 3  # the title, and a row of each run
    settings = text[text.index("Settings that differ") + 1 : text.index("Training")]
    assert settings == ["run", "seed", "run3", "3", "run4", "4"]


def test_results_of_probes_in_order():
    """As they were asked for, or by a column: the best score first, without one last."""
    scores = (("fc7", 50.0, 70.0, 10.0), ("fc7", 61.25, None, 9.0), ("conv5", 55.0, 90.0, 8.0))
    names = ("layer", "top1", "top5", "seconds_probe")
    made = [{"protocol": "lbfgs"} | dict(zip(names, of, strict=True)) for of in scores]
    orders = {None: [0, 1, 2], "top1": [1, 2, 0], "top5": [2, 0, 1], "seconds": [2, 1, 0]}
    for column, order in orders.items():
        assert results_file.ordered(made, column) == [made[place] for place in order], column
