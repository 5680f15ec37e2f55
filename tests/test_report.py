import base64
import io
import json
import subprocess
import sys
from html.parser import HTMLParser

import matplotlib.image
import numpy as np
import pytest

from hypersphere_jax import plots, report
from hypersphere_jax.config import UserError


class Page(HTMLParser):
    """A parsed page: its tags with attributes, its text, and whether every tag is closed."""

    VOID = ("meta", "img")

    def __init__(self, path):
        super().__init__()
        self.tags, self.text, self.open = [], [], []
        self.feed(path.read_text(encoding="utf-8"))
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if data.strip():
            self.text.append(data.strip())

    def images(self):
        sources = [attrs["src"] for tag, attrs in self.tags if tag == "img"]
        prefix = "data:image/png;base64,"
        assert all(source.startswith(prefix) for source in sources)
        return [base64.b64decode(source.removeprefix(prefix)) for source in sources]


@pytest.fixture
def picture(tmp_path):
    path = tmp_path / "picture.png"
    matplotlib.image.imsave(path, np.eye(3))
    return path


def make_run(folder, seed=0, loss=1.0):
    (folder / "eval").mkdir(parents=True)
    config = {
        "config": {"name": folder.name, "seed": seed, "model": {"dim": 32, "init_from": None}},
        "sessions": [{"started": f"day {seed}"}, {"started": f"day {seed + 1}"}],
    }
    (folder / "config.json").write_text(json.dumps(config))
    records = [{"step": 10 * i, "loss": loss / (i + 1), "align": 0.5, "lr": 0.1} for i in range(5)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    probe = {
        "run": folder.name,
        "protocol": "lbfgs",
        "split": "test",
        "chosen": {"C": 1e-4},
        "top1": 97.25,
        "n": 397,
    }
    (folder / "eval" / "lbfgs.json").write_text(json.dumps(probe))
    metrics = {"protocol": "metrics", "align": 0.21, "uniform": -3.7, "uniform_optimum": -3.875}
    (folder / "eval" / "metrics.json").write_text(json.dumps(metrics))
    return folder


# Tables on the terminal.

COLUMNS = ["method", "layer", "top-1 (%)", "paper", "align", "n"]
ROWS = [
    ["align + uniform [B]", "output", 97.2, "97.4", 0.123456, 397],
    ["contrastive", "conv5", 100.0, "83.9", float("nan"), 10_000],
    ["random", None, np.float32(9.5), None, None, np.int64(7)],
]


def test_table_fits_eighty_columns_as_plain_text(capsys):
    report.print_table(COLUMNS, ROWS, title="Table 1 [digits]", highlight_best={"top-1 (%)": max})
    title, head, rule, *lines = capsys.readouterr().out.splitlines()
    assert title == "Table 1 [digits]"
    assert len(lines) == 3 and max(map(len, (head, rule, *lines))) <= 80
    assert lines[0].split() == [
        "align",
        "+",
        "uniform",
        "[B]",
        "output",
        "97.20",
        "97.4",
        "0.1235",
        "397",
    ]
    assert lines[1].split() == ["contrastive", "conv5", "100.0", "83.9", "nan", "10000"]
    assert lines[2].split() == ["random", "-", "9.500", "-", "-", "7"]
    # Numbers end where their column's name ends; words start where it starts.
    for value, line in zip(("97.20", "100.0", "9.500"), lines, strict=True):
        assert line.index(value) + len(value) == head.index("top-1 (%)") + len("top-1 (%)")
    assert lines[0].index("97.4") == lines[1].index("83.9") == head.index("paper")


def test_wide_table_is_not_wrapped_in_a_file(capsys):
    report.print_table(["a", "b"], [["x" * 150, "y" * 150]])
    assert "x" * 150 + "  " + "y" * 150 in capsys.readouterr().out


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
    assert page.images() == [picture.read_bytes()]
    assert [attrs["alt"] for tag, attrs in page.tags if tag == "img"] == ['A "caption"']
    assert "http" not in path.read_text() and "url(" not in path.read_text()
    tags = {tag for tag, _ in page.tags}
    assert {"h1", "h2", "p", "table", "figure", "pre"} <= tags
    assert not tags & {"script", "b", "i", "link"}
    for text in (
        "Run <b>1</b>",
        "Alignment < uniformity & so on.",
        "<script>alert(1)</script>",
        "97.25",
        'A "caption"',
        "model",
        "[1, 2]",
        "<i>",
        "python run.py probe runs/a && echo done",
    ):
        assert text in page.text
    numbers = [attrs.get("class") for tag, attrs in page.tags if tag == "td"][:4]
    assert numbers == [None, "number", None, "number"]


def test_page_is_replaced_whole_or_not_at_all(tmp_path):
    path = report.write_page(tmp_path / "page.html", "old", [])
    with pytest.raises(FileNotFoundError):
        report.write_page(path, "new", [("figure", tmp_path / "missing.png", "none")])
    assert "old" in path.read_text()
    report.write_page(path, "new", [])
    assert "old" not in path.read_text()
    assert list(tmp_path.iterdir()) == [path]


def test_report_does_not_import_matplotlib():
    code = "import sys, hypersphere_jax.report; assert 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


# Reports of runs.


def test_run_report_shows_the_run(tmp_path, picture):
    run = make_run(tmp_path / "digits & <more>")
    (run / "figures").mkdir()
    picture.rename(run / "figures" / "augmented_pairs.png")
    path = report.run_report(run)
    page = Page(path)
    assert path == run / "report.html"
    curves = run / "figures" / "training_curves.png"
    assert matplotlib.image.imread(curves).shape[1] > 1000
    assert page.images()[0] == curves.read_bytes() and len(page.images()) == 2
    for text in (
        "digits & <more>",
        "augmented pairs",
        "97.25",
        "C=0.0001",
        "-3.875",
        "init_from",
        "day 1",
    ):
        assert text in page.text
    assert any("step 40, loss 0.2000" in text for text in page.text)
    assert any(f"probe '{run}'" in text for text in page.text)


def test_run_report_before_the_first_step(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    page = Page(report.run_report(tmp_path))
    assert page.images() == []
    assert "Nothing was evaluated yet." in page.text
    assert any("No metrics yet" in text for text in page.text)


def test_metrics_of_a_run_that_was_killed(tmp_path, monkeypatch):
    run = make_run(tmp_path / "run")
    (run / "metrics.jsonl").write_text(
        '{"step": 10, "loss": 4.0}\n{"step": 20, "lo\n{"step": 30, "loss": NaN}\n{"step": 40, "l'
    )
    drawn = {}
    monkeypatch.setattr(plots, "training_curves", lambda runs, path: drawn.update(runs))
    page = Page(report.run_report(run))
    assert [record["step"] for record in drawn["run"]] == [10, 30]
    assert any("not finite at step 30" in text for text in page.text)


def test_no_run_is_one_clear_line(tmp_path):
    for call in (report.run_report, lambda path: report.sweep_report([path], path, "title")):
        with pytest.raises(UserError) as error:
            call(tmp_path / "my run")
        message = str(error.value)
        assert str(tmp_path / "my run") in message and "config.json is missing" in message
        assert "python run.py pretrain --name 'my run'" in message and "\n" not in message
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UserError, match="at least one"):
        report.sweep_report([], tmp_path / "sweep.html", "title")


@pytest.mark.parametrize("content", ['{"top1": 9', "[1, 2]"])
def test_broken_result_is_named(tmp_path, content):
    run = make_run(tmp_path / "run")
    (run / "eval" / "knn.json").write_text(content)
    with pytest.raises(UserError, match=r"eval/knn\.json"):
        report.run_report(run)


def test_eval_tables_join_runs_by_protocol(tmp_path):
    runs = [make_run(tmp_path / "a" / "first"), make_run(tmp_path / "a" / "second")]
    tables = report.eval_tables(runs)
    assert list(tables) == ["lbfgs", "metrics"]
    # Groups stand last.
    assert tables["lbfgs"] == (
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


def test_tables_show_what_one_compares(tmp_path):
    """Results as the verbs write them: what is long, unknown, or a time stays in the file."""
    run = make_run(tmp_path / "run")
    about = {"protocol": "finetune", "init_from": "/a/long/path", "layer": "backbone"}
    found = {
        **{"top1": 90.0, "top1_interval": [88.0, 92.5], "top5": None, "learning_rates": [0.1, 0.2]},
        **{"seconds": 3.0, "fit_seconds": 1.0, "data_wait": 0.25, "confusion": [[1, 2], [3, 4]]},
        **{"align": 0.5, "align_standard_error": 0.013, "chosen": {"learning_rate": 0.1}},
    }
    (run / "eval" / "finetune.json").write_text(json.dumps(about | found))
    columns, rows = report.eval_tables([run])["finetune"]
    assert columns == ["file", "layer", "top-1 (%)", "95% interval", "align", "chosen"]
    assert rows == [
        ["finetune", "backbone", 90.0, [88.0, 92.5], "0.500 ± 0.013", {"learning_rate": 0.1}]
    ]


def test_pictures_stand_below_their_results(tmp_path, picture):
    run = make_run(tmp_path / "run")
    (run / "figures").mkdir()
    depth = {"protocol": "depth", "layer": "conv5", "mse": 1.25}
    (run / "eval" / "depth-conv5.json").write_text(json.dumps(depth))
    for name in ("metrics", "depth-conv5", "augmented_pairs"):
        (run / "figures" / f"{name}.png").write_bytes(picture.read_bytes())
    page = Page(report.run_report(run))
    assert len(page.images()) == 4
    captions = [attrs["alt"] for tag, attrs in page.tags if tag == "img"]
    assert captions[0] == "training curves" and captions[3] == "augmented pairs"
    assert captions[1].startswith("depth-conv5: test images")
    assert captions[2].startswith("metrics: positive pairs")
    order = [page.text.index(text) for text in ("1.250", captions[1], "lbfgs", captions[2])]
    assert order == sorted(order)


@pytest.mark.parametrize(
    ("config", "verbs"),
    [
        ({}, ["probe", "metrics", "finetune"]),
        ({"model": {"num_classes": 10}}, ["probe", "metrics"]),
        ({"data": {"recipe": "nyu_depth"}}, ["depth", "metrics"]),
    ],
)
def test_commands_fit_the_run(tmp_path, config, verbs):
    typed = "python run.py pretrain --name run"
    saved = {"config": config, "sessions": [{"command": typed}]}
    (tmp_path / "config.json").write_text(json.dumps(saved))
    page = Page(report.run_report(tmp_path))
    expected = [*(f"python run.py {verb} {tmp_path}" for verb in verbs), typed]
    assert page.text[-1].splitlines() == expected


def test_sweep_report_compares_runs(tmp_path):
    runs = [make_run(tmp_path / f"run{seed}", seed=seed, loss=seed + 1) for seed in (3, 4)]
    path = report.sweep_report(runs, tmp_path / "sweep.html", "Two seeds")
    page = Page(path)
    assert page.images() == [(tmp_path / "sweep_curves.png").read_bytes()]
    assert page.text.count("lbfgs") == 3  # the title, and a row of each run
    settings = page.text[page.text.index("Settings that differ") + 1 : page.text.index("Training")]
    assert settings == ["run", "seed", "run3", "3", "run4", "4"]
