"""Tables on the terminal, and the pages of runs: what stands in them, from which file."""

import base64
import json
from html.parser import HTMLParser

import numpy as np
import pytest

from hypersphere_jax import plots, report
from hypersphere_jax.config import UserError
from hypersphere_jax.evaluation import results


class Page(HTMLParser):
    """A parsed page: its tags, its text, its pictures; every tag is closed."""

    def __init__(self, path):
        super().__init__()
        self.tags, self.text, self.pictures, self.open = set(), [], {}, []
        self.feed(path.read_text(encoding="utf-8"))
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag == "img":
            source = dict(attrs)["src"].removeprefix("data:image/png;base64,")
            self.pictures[dict(attrs)["alt"]] = base64.b64decode(source)
        elif tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += [data.strip()] * bool(data.strip())


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


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def make_run(folder, seed=0, loss=1.0):
    sessions = [{"started": f"day {seed}", "command": f"python {n}"} for n in ("first", "last")]
    config = {"name": folder.name, "seed": seed, "model": {"dim": 32, "init_from": None}}
    write(folder / "config.json", {"config": config, "sessions": sessions})
    records = [{"step": 10 * i, "loss": loss / (i + 1), "align": 0.5} for i in range(5)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    found = {"split": "test", "chosen": {"C": 1e-4}, "top1": 97.25, "n": 397}
    write(folder / "eval" / "lbfgs.json", {"run": folder.name, "protocol": "lbfgs"} | found)
    found = {"align": 0.21, "uniform": -3.7, "uniform_optimum": -3.875}
    write(folder / "eval" / "metrics.json", {"protocol": "metrics"} | found)
    return folder


def test_table_is_plain_text_in_a_file(capsys):
    columns = ["method", "layer", "top-1 (%)", "n"]
    rows = [
        ["align + uniform [B]", "output", 97.2, 397],
        ["contrastive", "conv5", 100.0, 10_000],
        ["random", None, np.float32(9.5), np.int64(7)],
    ]
    report.print_table(columns, rows, title="Table 1 [digits]")
    title, _, _, *lines = capsys.readouterr().out.splitlines()
    assert title == "Table 1 [digits]"
    assert lines[0].split() == ["align", "+", "uniform", "[B]", "output", "97.20", "397"]
    assert lines[1].split() == ["contrastive", "conv5", "100.0", "10000"]
    assert lines[2].split() == ["random", "-", "9.500", "7"]
    for value, error, text in (
        (-3.69712, 0.0021, "-3.6971 ± 0.0021"),
        (1.5, 0.3, "1.50 ± 0.30"),
        (None, None, "-"),
        (2.0, None, "2.0000"),
    ):
        assert report.with_error(value, error) == text


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
    page = Page(path)
    assert page.pictures == {'A "caption"': b"a picture"}
    assert "http" not in path.read_text() and "url(" not in path.read_text()
    assert not page.tags & {"script", "b", "i", "link"}
    assert {"Run <b>1</b>", blocks[1][1], "<script>alert(1)</script>", "97.25"} <= set(page.text)
    assert {"model", "[1, 2]", "<i>", blocks[5][1]} <= set(page.text)
    # It is replaced whole or not at all.
    with pytest.raises(FileNotFoundError):
        report.write_page(path, "new", [("figure", tmp_path / "missing.png", "none")])
    assert "Results" in path.read_text() and list(path.parent.iterdir()) == [path]


def test_run_report_shows_the_run(tmp_path, curves):
    run = make_run(tmp_path / "digits & <more>")
    (run / "figures").mkdir()
    (run / "figures" / "metrics.png").write_bytes(b"metrics")
    page = Page(report.run_report(run))
    assert list(page.pictures.values()) == [b"curves", b"metrics"]
    assert [record["step"] for record in curves[0][run.name]] == [0, 10, 20, 30, 40]
    assert {run.name, "97.25", "C=0.0001", "-3.875", "init_from", "day 0"} <= set(page.text)
    assert any("step 40, loss 0.2000" in text for text in page.text)
    # What to type next: the last session's command continues the run.
    verbs = [f"python run.py {verb} '{run}'" for verb in ("probe", "metrics", "finetune")]
    assert page.text[-1].splitlines() == [*verbs, "python last"]


def test_what_a_page_says_of_damage(tmp_path, curves):
    run = make_run(tmp_path / "run")
    (run / "metrics.jsonl").write_text(  # as a kill leaves it
        '{"step": 10, "loss": 4.0}\n{"step": 20, "lo\n{"step": 30, "loss": NaN}\n{"step": 40, "l'
    )
    page = Page(report.run_report(run))
    assert [record["step"] for record in curves[0]["run"]] == [10, 30]
    assert any("not finite at step 30" in text for text in page.text)
    (run / "eval" / "knn.json").write_text('{"top1": 9')
    with pytest.raises(UserError, match=r"eval/knn\.json"):
        report.run_report(run)
    with pytest.raises(UserError, match=r"config\.json is missing"):
        report.run_report(tmp_path / "my run")


def test_eval_tables_join_runs_by_protocol(tmp_path):
    runs = [make_run(tmp_path / "a" / name) for name in ("first", "second")]
    tables = report.eval_tables(runs)
    assert list(tables) == ["lbfgs", "metrics"]
    assert tables["lbfgs"] == (  # groups stand last
        ["run", "file", "split", "top-1 (%)", "n", "chosen"],
        [[name, "lbfgs", "test", 97.25, 397, {"C": 1e-4}] for name in ("first", "second")],
    )
    columns, rows = tables["metrics"]
    assert columns == ["run", "file", "align", "uniform", "optimal uniform"]
    assert rows[1] == ["second", "metrics", 0.21, -3.7, -3.875]


def test_sweep_report_compares_runs(tmp_path, curves):
    runs = [make_run(tmp_path / f"run{seed}", seed=seed, loss=seed + 1) for seed in (3, 4)]
    page = Page(report.sweep_report(runs, tmp_path / "sweep.html", "Two seeds"))
    assert list(page.pictures.values()) == [b"curves"] and (tmp_path / "sweep_curves.png").is_file()
    assert [records[0]["loss"] for records in curves[0].values()] == [4, 5]
    assert page.text.count("lbfgs") == 3  # the title, and a row of each run
    settings = page.text[page.text.index("Settings that differ") + 1 : page.text.index("Training")]
    assert settings == ["run", "seed", "run3", "3", "run4", "4"]


def test_results_of_probes_in_order():
    """As they were asked for, or by a column: the best score first, without one last."""
    scores = (("fc7", 50.0, 70.0, 10.0), ("fc7", 61.25, None, 9.0), ("conv5", 55.0, 90.0, 8.0))
    names = ("layer", "top1", "top5", "seconds_probe")
    made = [{"protocol": "lbfgs"} | dict(zip(names, of, strict=True)) for of in scores]
    orders = {None: [0, 1, 2], "top1": [1, 2, 0], "top5": [2, 0, 1], "seconds": [2, 1, 0]}
    for column, order in orders.items():
        assert results.ordered(made, column) == [made[place] for place in order], column
