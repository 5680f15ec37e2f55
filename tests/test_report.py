"""Tables on the terminal, and the pages of runs: what stands in them, from which file."""

import html
import json
import os
import re
from base64 import b64decode

import numpy as np
import pytest
from rich.text import Text

from hypersphere_jax import plots, report, runs_page, tables
from hypersphere_jax.configs import PretrainConfig
from hypersphere_jax.evaluate import results_file

EPOCHS = PretrainConfig().epochs


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

    def draw(runs, path, kinds=None):
        asked.append(runs)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"curves")

    monkeypatch.setattr(plots, "training_curves", draw)
    return asked


def make_run(folder, seed=0, loss=1.0):
    session = {"started": f"day {seed}", "device": {"count": 1}}
    sessions = [session | {"command": f"python {name}"} for name in ("first", "last")]
    config = {"name": folder.name, "seed": seed, "model": {"dim": 32, "init_from": None}}
    probe = {"split": "test", "chosen": {"C": 1e-4}, "top1": 97.25, "n": 397}
    metrics = {"align": 0.21, "uniform": -3.7, "uniform_optimum": -3.875}
    (folder / "eval").mkdir(parents=True)
    for name, lines in {
        "config.json": [{"config": config, "sessions": sessions, "data_digest": "d"}],
        "metrics.jsonl": [{"step": 10 * i, "loss": loss / (i + 1), "align": 0.5} for i in range(5)],
        "eval/lbfgs.json": [{"run": folder.name, "protocol": "lbfgs"} | probe],
        "eval/metrics.json": [{"protocol": "metrics"} | metrics],
    }.items():
        (folder / name).write_text("\n".join(map(json.dumps, lines)) + "\n")
    return folder


def test_table_is_plain_text_in_a_file(capsys):
    rows = [["a [B]", 97.2, 397], ["b", 100.0, 10_000], [None, np.float32(9.5), np.int64(7)]]
    tables.print_table(["method", "top-1 (%)", "n"], rows, title="Table 1 [digits]")
    title, _, _, *lines = capsys.readouterr().out.splitlines()
    found = [" ".join(line.split()) for line in lines[:3]]
    assert [title, *found] == ["Table 1 [digits]", "a [B] 97.20 397", "b 100.0 10000", "- 9.500 7"]
    assert tables.with_error(-3.69712, 0.0021) == "-3.6971 ± 0.0021"
    assert tables.with_error(2.0, None) == "2.0000"


def test_tables_of_narrow_terminals_cut_nothing(monkeypatch, capsys):
    """Long texts wrap; where that is not enough, the columns of each row do."""
    monkeypatch.setattr(tables.sys.stdout, "isatty", lambda: True, raising=False)
    name, rows = "name_" * 5, [["name_" * 5, "many words " * 10, 1234567]] * 2
    for width, lines_of_a_row in ((200, 1), (60, 5), (40, None)):
        monkeypatch.setenv("COLUMNS", str(width))
        tables.print_table(["run", "text", "steps"], rows)
        out = Text.from_ansi(capsys.readouterr().out).plain
        head, *lines = (line.rstrip() for line in out.splitlines())
        text = "\n".join([head, *lines])
        assert text.count(name) == 2 and text.count("1234567") == 2 and "…" not in text
        assert text.count("many") == text.count("words") == 20
        assert max(map(len, lines)) <= width
        if lines_of_a_row is None:
            assert head == name and lines[0].startswith("  text many words")
        else:
            assert head.split() == ["run", "text", "steps"]
            assert len(lines) == 1 + 2 * lines_of_a_row


OPTIONS = {"dim": 33, "layers": [1, 2], "<i>": None, "epochs": EPOCHS}


def test_page_holds_its_blocks_and_nothing_from_outside(tmp_path):
    picture = tmp_path / "picture.png"
    picture.write_bytes(b"a picture")
    blocks = [
        ("heading", "Results"),
        ("text", "Alignment < uniformity & so on."),
        ("table", ["name", "top-1 (%)"], [["<script>alert(1)</script>", 97.25], ["b", None]]),
        ("figure", picture, 'A "caption"'),
        ("config", OPTIONS),
        ("command", "python run.py probe runs/a && echo done"),
    ]
    path = report.write_page(tmp_path / "new" / "page.html", "Run <b>1</b>", blocks)
    tags, text, pictures = parsed(path)
    assert pictures == [b"a picture"] and 'alt="A &quot;caption&quot;"' in path.read_text()
    assert "http" not in path.read_text() and "url(" not in path.read_text()
    assert not tags & {"script", "b", "i", "link"}
    said = {"Run <b>1</b>", blocks[1][1], "<script>alert(1)</script>", "97.25"}
    assert said | {"--layers", "[1, 2]", "--<i>", blocks[5][1]} <= set(text)
    # Of options what is no default stands open, the rest is folded.
    assert text.index("--dim") < text.index("Defaults") < text.index("--epochs")
    # It is replaced whole or not at all.
    with pytest.raises(FileNotFoundError):
        report.write_page(path, "new", [("figure", tmp_path / "missing.png", "none")])
    assert "Results" in path.read_text() and list(path.parent.iterdir()) == [path]


def test_run_report_shows_the_run(tmp_path, curves, caplog):
    run = make_run(tmp_path / "digits & <more>")
    (run / "figures").mkdir()
    for name in ("another", "augmented_views", "nearest_neighbours"):
        (run / "figures" / f"{name}.png").write_bytes(name.encode())
    _, text, pictures = parsed(report.run_report(run))
    assert pictures == [b"curves", b"augmented_views", b"nearest_neighbours", b"another"]
    assert [record["step"] for record in curves[0][run.name]] == [0, 10, 20, 30, 40]
    assert {run.name, "97.25", "-3.875", "--init-from", "day 0"} <= set(text)
    # What is no score stands above the table.
    assert "file lbfgs, split test, n 397, chosen C=0.0001" in text
    assert any("step 40, loss 0.2" in said for said in text)
    # What to type next: the last session's command continues the run.
    assert text[-1].splitlines()[::3] == [f"python run.py probe '{run}'", "python last"]
    (run / "metrics.jsonl").write_text(  # as a kill leaves it
        '{"step": 10, "loss": 4.0}\n{"step": 20, "lo\n{"step": 30, "loss": NaN}\n{"step": 40, "l'
    )
    assert "not finite at step 30" in report.run_report(run).read_text()
    assert [record["step"] for record in curves[1][run.name]] == [10, 30]
    # A result that is damaged is left out, in a line.
    (run / "eval" / "knn.json").write_text('{"top1": 9')
    (run / "eval" / "lbfgs.json").write_text('{"top1": 97.25')
    assert "97.25" not in report.run_report(run).read_text()
    assert "knn.json is not JSON" in caplog.text and "lbfgs.json is not JSON" in caplog.text


def test_runs_are_compared(tmp_path, curves):
    """In a table of each protocol, and on a page with what differs."""
    runs = [make_run(tmp_path / f"run{seed}", seed, seed + 1) for seed in (3, 4)]
    scores = [[run.name, "lbfgs", "test", 97.25, 397, {"C": 1e-4}] for run in runs]
    metrics = [[run.name, "metrics", 0.21, -3.7, -3.875] for run in runs]
    assert report.eval_tables(runs) == {  # groups stand last
        "lbfgs": (["run", "file", "split", "top-1 (%)", "n", "chosen"], scores),
        "metrics": (["run", "file", "align", "uniform", "optimal uniform"], metrics),
    }
    _, text, pictures = parsed(runs_page.sweep_report(runs, tmp_path / "sweep.html", "Two seeds"))
    assert pictures == [b"curves"] and (tmp_path / "sweep_curves.png").is_file()
    assert [records[0]["loss"] for records in curves[0].values()] == [4, 5]
    assert text.count("lbfgs") == 2  # the table's title, and the row of both runs' mean
    assert "97.25 ± 0.00 (SD, 2 runs)" in text and "Means over seeds" in text
    settings = text[text.index("Settings that differ") + 1 : text.index("Training")]
    assert settings == ["run", "--seed", "run3", "3", "run4", "4"]


def test_an_evaluation_writes_the_page_anew(tmp_path, curves, caplog):
    """Cheaply: without drawing curves that are newer than the log. No page is no failure."""
    run, other = make_run(tmp_path / "a"), make_run(tmp_path / "b")
    (run / "eval" / "lbfgs.json").rename(tmp_path / "later.json")
    (run / "eval" / "metrics.json").unlink()
    assert "Nothing was evaluated yet" in report.run_report(run).read_text()
    (tmp_path / "later.json").rename(run / "eval" / "lbfgs.json")
    (other / "config.json").write_text("no JSON")
    tuned = {"protocol": "finetune", "run": "b", "init_from": str(run), "top1": 88.25}
    (other / "eval" / "finetune.json").write_text(json.dumps(tuned))
    assert report.refreshed([other, run]) == [run / "report.html"] and len(curves) == 1
    _, text, _ = parsed(run / "report.html")
    assert {"97.25", "fine-tuned from this run", "88.25"} <= set(text)
    assert f"{other}: its page is not written" in caplog.text
    result = {"protocol": "lbfgs", "top1": 97.25, "step": 40}
    (run / "eval" / "lbfgs.json").write_text(json.dumps(result))
    (run / "eval" / "old.json").write_text(json.dumps(result | {"step": 20}))
    os.utime(run / "metrics.jsonl")  # it trained on
    report.refreshed([run])
    assert len(curves) == 2
    _, text, _ = parsed(run / "report.html")
    assert "40" in text and "20 of 40" in text


def test_the_next_commands_are_those_that_work(tmp_path, monkeypatch):
    """By what is on record of the data; also without a record, and as the program was called."""
    monkeypatch.setattr("sys.argv", ["/x/run.py"])
    run = make_run(tmp_path / "a")
    record = json.loads((run / "config.json").read_text())
    every = [f"probe {run}", f"metrics {run}", f"finetune {run}"]
    of_train = [f"metrics {run} --split train"]
    for data, verbs in (
        (None, every),
        ({"labels": True, "test_split": True}, every),
        ({"labels": False, "test_split": True}, every[1:2]),
        ({"labels": True, "test_split": False}, of_train),
    ):
        (run / "config.json").write_text(json.dumps(record | ({"data": data} if data else {})))
        assert report.next_commands(run) == [f"python /x/run.py {verb}" for verb in verbs]


def score(folder, top1, uniform, seed=0, tau=0.5, n=397):
    """A run with an accuracy and a uniformity, which has a standard error."""
    make_run(folder, seed)
    record = json.loads((folder / "config.json").read_text())
    record["config"] = {"name": folder.name, "seed": seed, "contrastive_tau": tau}
    values = {"uniform": uniform, "uniform_standard_error": 0.04}
    for name, content in {
        "config": record,
        "eval/lbfgs": {"protocol": "lbfgs", "data": "digits", "top1": top1, "n": n},
        "eval/metrics": {"protocol": "metrics", "data": "digits"} | values,
    }.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def differences(runs, path):
    _, text, _ = parsed(runs_page.sweep_report(runs, path, "Runs"))
    return text[text.index("Differences") + 1 : text.index("Evaluation")]


def test_differences_have_intervals(tmp_path, curves):
    """Of single runs by Newcombe and from standard errors, of means over seeds by Welch."""
    one = score(tmp_path / "one", 80.0, -3.0, n=70)
    other = score(tmp_path / "other", 60.0, -2.5, tau=0.1, n=80)
    said, *cells = differences([other, one], tmp_path / "runs.html")
    assert "to other." in said and "Newcombe" in said and "standard errors" in said
    assert "Welch" not in said
    rows = [cells[start : start + 6] for start in range(6, len(cells), 6)]
    assert rows[:2] == [
        ["top-1 (%)", "lbfgs", "other", "60.00", "-", "-"],
        ["top-1 (%)", "lbfgs", "one", "80.00", "+20.00", "+5.24 to +33.39"],
    ]
    assert rows[3][3:] == ["-3.000 ± 0.040 (SE)", "-0.500", "-0.611 to -0.389"]
    more = [score(tmp_path / f"s{seed}", 82.0 + seed, -3.0, seed) for seed in (1, 2)]
    more += [score(tmp_path / "other1", 62.0, -2.5, seed=1, tau=0.1)]
    said, *cells = differences([one, *more, other], tmp_path / "runs.html")
    rows = [cells[start : start + 6] for start in range(6, len(cells), 6)]
    assert "Welch" in said and "Newcombe" not in said and "to one, s1, s2." in said
    assert [row[2:5] for row in rows[:2]] == [
        ["one, s1, s2", "82.33 ± 2.08 (SD, 3 runs)", "-"],
        ["other1, other", "61.00 ± 1.41 (SD, 2 runs)", "-21.33"],
    ]
    # One run of a group, and one run against several.
    (more[2] / "eval" / "lbfgs.json").unlink()
    _, *cells = differences([one, *more, other], tmp_path / "runs.html")
    assert cells[14:18] == ["other (1 of 2 runs)", "60.00", "-22.33", "one run: no interval"]
    # Of other data there is a value, and no difference.
    result = {"protocol": "lbfgs", "data": "cifar10", "top1": 50.0, "n": 10_000}
    (other / "eval" / "lbfgs.json").write_text(json.dumps(result))
    _, *cells = differences([one, other], tmp_path / "runs.html")
    assert cells[12:18] == ["top-1 (%)", "lbfgs", "other", "50.00", "other data", "-"]


def test_accuracies_on_the_same_samples_are_paired(tmp_path, curves, caplog):
    """Where predictions of both are kept, of the same labels and of these results."""
    labels = np.arange(100) % 3
    runs = [
        score(tmp_path / "a", 90.0, -3.0, n=100),
        score(tmp_path / "b", 95.0, -3.0, 0, 0.1, 100),
    ]
    wrong, files = (range(10), range(3, 8)), [run / "eval" / "lbfgs.npz" for run in runs]

    def interval(one, other=labels):
        for file, targets, places in zip(files, (one, other), wrong, strict=True):
            predicted = targets.copy()
            predicted[places] += 1
            np.savez(file, targets=targets, predicted=predicted)
        return said_of()

    def said_of():
        said, *cells = differences(runs, tmp_path / "runs.html")
        return cells[16:18], "Agresti and Min" in said, "Newcombe" in said

    paired = ["+5.00", "+0.29 to +9.51, paired"], True, False
    apart = ["+5.00", "-2.63 to +12.96"], False, True
    assert interval(labels) == paired
    assert interval(labels[::-1]) == apart  # other samples, or another order
    assert interval(labels[:50], labels[:50]) == apart  # of another result
    assert interval(labels) == paired and not caplog.text
    files[0].write_bytes(files[0].read_bytes()[:-9])
    assert said_of() == apart and f"{files[0]} cannot be read" in caplog.text
    files[0].unlink()
    assert said_of() == apart


def test_losses_that_do_not_compare_are_told_apart():
    kinds = runs_page._kinds
    weighted = {"loss": "weighted", "align_weight": 1.0, "uniform_weight": 0.5, "align_alpha": 2.0}
    weighted |= {"uniform_t": 2.0}
    assert kinds(weighted)["loss"] == "1 align (alpha = 2.0) + 0.5 uniform (t = 2.0)"
    other = kinds(weighted | {"align_alpha": 1.0})
    assert other["loss"] != kinds(weighted)["loss"] and other["align"] != kinds(weighted)["align"]
    assert other["uniform"] == kinds(weighted)["uniform"]
    named = {"loss": "nt_xent", "loss_tau": 0.5, "similarity": "dot", "align_weight": 1.0}
    assert kinds(named)["loss"] == "nt_xent (loss_tau=0.5, similarity=dot)"
    assert kinds(named | {"loss_tau": 0.1})["loss"] != kinds(named)["loss"]
    assert kinds({"function": "my_loss"})["loss"] == "my_loss"


def test_results_of_probes_in_order():
    """As they were asked for, or by a column: the best score first, without one last."""
    scores = (("fc7", 50.0, 70.0, 10.0), ("fc7", 61.25, None, 9.0), ("conv5", 55.0, 90.0, 8.0))
    names = ("layer", "top1", "top5", "seconds_probe")
    made = [{"protocol": "lbfgs"} | dict(zip(names, of, strict=True)) for of in scores]
    orders = {None: [0, 1, 2], "top1": [1, 2, 0], "top5": [2, 0, 1], "seconds": [2, 1, 0]}
    for column, order in orders.items():
        assert results_file.ordered(made, column) == [made[place] for place in order], column
