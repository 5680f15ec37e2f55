"""Tables on the terminal, and the pages of runs: what stands in them, from which file."""

import ast
import base64
import inspect
import io
import json
import sys
from html.parser import HTMLParser

import matplotlib.image
import numpy as np
import pytest

from hypersphere_jax import plots, report
from hypersphere_jax.config import UserError
from hypersphere_jax.evaluation import results


class Page(HTMLParser):
    """A parsed page: its tags with attributes, its text; every tag is closed."""

    def __init__(self, path):
        super().__init__()
        self.tags, self.text, self.open = [], [], []
        self.feed(path.read_text(encoding="utf-8"))
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if data.strip():
            self.text.append(data.strip())

    def images(self):
        prefix = "data:image/png;base64,"
        sources = [attrs["src"] for tag, attrs in self.tags if tag == "img"]
        return [base64.b64decode(source.removeprefix(prefix)) for source in sources]

    def captions(self):
        return [attrs["alt"] for tag, attrs in self.tags if tag == "img"]


@pytest.fixture
def picture(tmp_path):
    path = tmp_path / "picture.png"
    matplotlib.image.imsave(path, np.eye(3))
    return path


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


# Tables on the terminal.


def test_table_is_plain_text_in_a_file(capsys):
    columns = ["method", "layer", "top-1 (%)", "paper", "n"]
    rows = [
        ["align + uniform [B]", "output", 97.2, "97.4", 397],
        ["contrastive", "conv5", 100.0, "83.9", 10_000],
        ["random", None, np.float32(9.5), None, np.int64(7)],
    ]
    report.print_table(columns, rows, title="Table 1 [digits]")
    title, head, rule, *lines = capsys.readouterr().out.splitlines()
    assert title == "Table 1 [digits]" and max(map(len, (head, rule, *lines))) <= 80
    assert lines[0].split() == ["align", "+", "uniform", "[B]", "output", "97.20", "97.4", "397"]
    assert lines[1].split() == ["contrastive", "conv5", "100.0", "83.9", "10000"]
    assert lines[2].split() == ["random", "-", "9.500", "-", "7"]
    # Numbers end where their column's name ends; words start where it starts.
    end = head.index("top-1 (%)") + len("top-1 (%)")
    ends = [
        line.index(v) + len(v) for v, line in zip(("97.20", "100.0", "9.500"), lines, strict=True)
    ]
    assert ends == [end] * 3 and lines[1].index("83.9") == head.index("paper")
    report.print_table(["a", "b"], [["x" * 150, float("nan")]])  # is not wrapped
    assert "x" * 150 + "  nan" in capsys.readouterr().out
    for value, error, text in ((-3.69712, 0.0021, "-3.6971 ± 0.0021"), (1.5, 0.3, "1.50 ± 0.30")):
        assert report.with_error(value, error) == text
    assert (report.with_error(None, None), report.with_error(2.0, None)) == ("-", "2.0000")


def test_best_values_are_bold_on_a_terminal(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stdout", Terminal())
    rows = [["a", float("nan"), 5], ["b", 2.0, 3], ["c", 1.0, None], ["d", 2.0, 4]]
    report.print_table(["name", "high", "low"], rows, highlight_best={"high": max, "low": min})
    a, b, c, d = sys.stdout.getvalue().splitlines()[2:]
    assert "\x1b[1m2.000" in b and "\x1b[1m2.000" in d and "\x1b[1m" in b.split("2.000")[1]
    assert "\x1b[1m" not in a + c and d.count("\x1b[1m") == 1


def test_table_of_probes():
    """In the order that was asked for; what all share stands above it once."""
    first = {"step": 1, "d": 8, "n": 1397, "chosen": {"l2": 0.001}}
    made = [
        first
        | {"run": run, "layer": layer, "protocol": protocol, "top1": top1, "top5": top5}
        | {"seconds_probe": 10.0 - place, "top1_interval": [top1 - 2 - place, top1 + 2 + place]}
        for place, (run, layer, protocol, top1, top5) in enumerate(
            [
                ("a", "fc7", "lbfgs", 50.0, 70.0),
                ("b", "fc7", "knn", 61.25, None),
                ("a", "conv5", "lbfgs", 55.0, 90.0),
            ]
        )
    ]
    made[1]["k"] = 5
    for column, order in {
        None: [0, 1, 2],
        **{"top1": [1, 2, 0], "top5": [2, 0, 1]},  # best first; without one: last
        **{"run": [0, 2, 1], "layer": [2, 0, 1], "seconds": [2, 1, 0]},
    }.items():
        assert results.ordered(made, column) == [made[place] for place in order], column
    title, columns, rows = results.table(made)
    assert title == "2 runs, step 1, d 8, 1,397 test samples, accuracies in percent"
    assert columns == ["run", "layer", "protocol", "top-1 ± 95%", "top-5", "chosen", "s"]
    assert rows[0] == ["a", "fc7", "lbfgs", "50.00 ± 2.00", 70.0, "l2=0.001", "10.00"]
    assert rows[1] == ["b", "fc7", "knn 5", "61.25 ± 3.00", None, "l2=0.001", "9.00"]
    chosen = {"chosen": {"learning_rate": 30.0, "weight_decay": 0.0}, "valid_top1": 49.5}
    of_sgd = made[0] | chosen | {"protocol": "moco", "augment": True, "converged": False}
    _, columns, ((protocol, valid, _, _, chosen, _),) = results.table([of_sgd])
    assert protocol == "moco+augment*" and chosen == "lr=30, wd=0" and valid == 49.5
    assert "held out" in columns and "run" not in columns


# Pages.


def test_page_holds_its_blocks_and_nothing_from_outside(tmp_path, picture):
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
    assert page.images() == [picture.read_bytes()] and page.captions() == ['A "caption"']
    assert "http" not in path.read_text() and "url(" not in path.read_text()
    tags = {tag for tag, _ in page.tags}
    assert {"h1", "h2", "p", "table", "figure", "pre"} <= tags
    assert not tags & {"script", "b", "i", "link"}
    assert {"Run <b>1</b>", blocks[1][1], "<script>alert(1)</script>", "97.25"} <= set(page.text)
    assert {"model", "[1, 2]", "<i>", blocks[5][1]} <= set(page.text)
    # It is replaced whole or not at all.
    with pytest.raises(FileNotFoundError):
        report.write_page(path, "new", [("figure", tmp_path / "missing.png", "none")])
    assert "Results" in path.read_text() and list(path.parent.iterdir()) == [path]
    # Matplotlib, which plots/ alone imports, is imported where a picture is drawn, and not before.
    above = [node for node in ast.parse(inspect.getsource(report)).body if hasattr(node, "names")]
    assert above and not any("plots" in ast.unparse(node) for node in above)


def test_run_report_shows_the_run(tmp_path, picture, curves):
    run = make_run(tmp_path / "digits & <more>")
    write(run / "eval" / "depth-conv5.json", {"protocol": "depth", "layer": "conv5", "mse": 1.25})
    (run / "figures").mkdir()
    for name in ("metrics", "depth-conv5", "augmented_pairs"):
        (run / "figures" / f"{name}.png").write_bytes(picture.read_bytes())
    page = Page(report.run_report(run))
    assert page.images() == [b"curves", *[picture.read_bytes()] * 3]
    assert [record["step"] for record in curves[0][run.name]] == [0, 10, 20, 30, 40]
    assert {run.name, "97.25", "C=0.0001", "-3.875", "init_from", "day 0"} <= set(page.text)
    assert any("step 40, loss 0.2000" in text for text in page.text)
    # Pictures stand below their results.
    first, depth, metrics, last = page.captions()
    assert (first, last) == ("training curves", "augmented pairs")
    assert depth.startswith("depth-conv5") and metrics.startswith("metrics")
    order = [page.text.index(text) for text in ("1.250", depth, "lbfgs", metrics)]
    assert order == sorted(order)
    # What to type next: the last session's command continues the run.
    verbs = [f"python run.py {verb} '{run}'" for verb in ("probe", "metrics", "finetune")]
    assert page.text[-1].splitlines() == [*verbs, "python last"]


def test_commands_fit_the_run(tmp_path):
    for config, verbs in (
        ({"model": {"num_classes": 10}}, ["probe", "metrics"]),
        ({"data": {"recipe": "nyu_depth"}}, ["depth", "metrics"]),
        ({"model": {"vocabulary": 9}}, ["metrics", "probe"]),
    ):
        write(tmp_path / "config.json", {"config": config})
        page = Page(report.run_report(tmp_path))
        assert [line.split()[2] for line in page.text[-1].splitlines()] == verbs
        assert page.images() == [] and "Nothing was evaluated yet." in page.text


def test_what_a_page_says_of_damage(tmp_path, curves):
    run = make_run(tmp_path / "run")
    (run / "metrics.jsonl").write_text(  # as a kill leaves it
        '{"step": 10, "loss": 4.0}\n{"step": 20, "lo\n{"step": 30, "loss": NaN}\n{"step": 40, "l'
    )
    page = Page(report.run_report(run))
    assert [record["step"] for record in curves[0]["run"]] == [10, 30]
    assert any("not finite at step 30" in text for text in page.text)
    for content in ('{"top1": 9', "[1, 2]"):
        (run / "eval" / "knn.json").write_text(content)
        with pytest.raises(UserError, match=r"eval/knn\.json"):
            report.run_report(run)
    lost = tmp_path / "my run"
    for call in (report.run_report, lambda path: report.sweep_report([path], path, "title")):
        with pytest.raises(UserError, match=r"config\.json is missing") as error:
            call(lost)
        assert str(lost) in str(error.value) and "\n" not in str(error.value)
    with pytest.raises(UserError, match="at least one"):
        report.sweep_report([], tmp_path / "sweep.html", "title")


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
    one = report.eval_tables(runs[:1])
    assert one == {name: (c[1:], [row[1:] for row in r[:1]]) for name, (c, r) in tables.items()}
    namesake = make_run(tmp_path / "b" / "first")
    rows = report.eval_tables([runs[0], namesake])["lbfgs"][1]
    assert {row[0] for row in rows} == {str(runs[0]), str(namesake)}
    # What is long, unknown, or a time stays in the file.
    about = {"protocol": "finetune", "init_from": "/a/long/path", "layer": "backbone"}
    found = {
        **{"top1": 90.0, "top1_interval": [88.0, 92.5], "top5": None, "learning_rates": [0.1, 0.2]},
        **{"seconds": 3.0, "fit_seconds": 1.0, "data_wait": 0.25, "confusion": [[1, 2], [3, 4]]},
        **{"align": 0.5, "align_standard_error": 0.013, "chosen": {"learning_rate": 0.1}},
    }
    write(runs[0] / "eval" / "finetune.json", about | found)
    columns, rows = report.eval_tables(runs[:1])["finetune"]
    assert columns == ["file", "layer", "top-1 (%)", "95% interval", "align", "chosen"]
    assert rows[0][1:] == ["backbone", 90.0, [88.0, 92.5], "0.500 ± 0.013", {"learning_rate": 0.1}]


def test_sweep_report_compares_runs(tmp_path, curves):
    runs = [make_run(tmp_path / f"run{seed}", seed=seed, loss=seed + 1) for seed in (3, 4)]
    page = Page(report.sweep_report(runs, tmp_path / "sweep.html", "Two seeds"))
    assert page.images() == [b"curves"] and (tmp_path / "sweep_curves.png").is_file()
    assert [records[0]["loss"] for records in curves[0].values()] == [4, 5]
    assert page.text.count("lbfgs") == 3  # the title, and a row of each run
    settings = page.text[page.text.index("Settings that differ") + 1 : page.text.index("Training")]
    assert settings == ["run", "seed", "run3", "3", "run4", "4"]
