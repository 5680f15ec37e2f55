"""Page of a run: its content, and hostile names."""

import json

import numpy as np
import pytest
from PIL import Image
from reports import make_run, parse

from hypersphere_jax.configs import UserError
from hypersphere_jax.reporting import run_page
from hypersphere_jax.reporting.page import Section, Table, write_page

PROBE = {"protocol": "lbfgs", "split": "test", "top1": 97.25, "top1_interval": [95.5, 98.25]}
PROBE |= {"chosen": {"l2": 0.5}, "grid": [{"l2": 0.5, "valid": 12.5}], "seconds_probe": 77.5}
METRICS = {"protocol": "metrics", "uniform": -3.7, "uniform_standard_error": 0.05, "align": 0.21}
METRICS |= {"pair_distance": 0.5, "pair_distance_standard_error": 0.01}
HOSTILE = ("<script>alert(1)</script>", '"><img src=x>', "{{ 1 }}", "a\udcff", "&amp;")


def draw(path, size=(4, 3)):
    path.parent.mkdir(exist_ok=True)
    Image.fromarray(np.zeros((*size, 3), np.uint8)).save(path)


def test_a_page_escapes_names_and_embeds_pictures(tmp_path):
    draw(tmp_path / "a.png")
    table = Table(["name", HOSTILE[0]], [[name, 97.25] for name in HOSTILE], HOSTILE[1])
    sections = [
        Section(HOSTILE[0], HOSTILE, [table], {tmp_path / "a.png": HOSTILE[1]}, HOSTILE),
        Section(tables=[Table(["x"], [[None]], HOSTILE[0], folded=True)]),
    ]
    path = write_page(tmp_path / "new" / "page.html", HOSTILE[0], sections)
    tags, texts, pictures = parse(path)
    assert [picture.size for picture in pictures] == [(3, 4)]
    assert not tags & {"script", "link"} and path.read_text().count("<img") == 1
    shown = {name.encode(errors="backslashreplace").decode() for name in HOSTILE}
    assert shown <= set(texts) and texts.count("97.25") == len(HOSTILE)
    assert "http" not in path.read_text()


def test_an_interrupted_page_leaves_the_earlier_one(tmp_path):
    path = write_page(tmp_path / "page.html", "first", [])
    before = path.read_text()
    with pytest.raises(FileNotFoundError):
        write_page(path, "second", [Section(figures={tmp_path / "missing.png": "none"})])
    assert path.read_text() == before and list(tmp_path.iterdir()) == [path]


def test_the_page_shows_results_curves_options_and_commands(tmp_path):
    results = {"lbfgs-output": PROBE, "metrics-test": METRICS}
    run = make_run(tmp_path / "digits & <more>", results=results, model__dim=33)
    draw(run / "figures" / "nearest_neighbours.png", (5, 6))
    draw(run / "figures" / "another.png", (7, 8))
    page = run_page.write_run_page(run)
    _, texts, pictures = parse(page)
    assert page == run / "report.html" and texts[0] == run.name
    shown = {"97.25", "95.50, 98.25", "-3.700 ± 0.050", "0.500 ± 0.010", "0.2100", "l2=0.5"}
    assert shown | {"lbfgs-output"} <= set(texts)
    assert not {"12.50", "77.50"} & set(texts)
    assert texts[texts.index("model.dim") + 1] == "33"
    assert [picture.size for picture in pictures[1:]] == [(6, 5), (8, 7)] and len(pictures) == 3
    assert (run / "figures" / "training_curves.png").is_file()
    commands = texts[-1].splitlines()
    assert f"probe '{run}'" in commands[0]
    assert commands[-1] == f"python run.py pretrain --name {run.name}"


def test_nearest_sentences_are_a_table(tmp_path):
    run = make_run(tmp_path / "a")
    file = run / "figures" / "nearest_sentences.json"
    file.parent.mkdir()
    file.write_text(json.dumps({"columns": ["x <y>"], "rows": [["A <b>."], [0.5]]}))
    tags, texts, _ = parse(run_page.write_run_page(run))
    assert {"x <y>", "A <b>.", "0.5000"} <= set(texts) and "b" not in tags
    file.write_text('{"columns": []}')
    assert "A <b>." not in parse(run_page.write_run_page(run))[1]


def test_pages_that_cannot_be_written_are_skipped(tmp_path, caplog):
    broken, sound = make_run(tmp_path / "broken"), make_run(tmp_path / "sound")
    (broken / "config.json").write_text("no JSON")
    assert run_page.update_pages([broken, sound]) == [sound / "report.html"]
    assert sound.name in (sound / "report.html").read_text()
    assert str(broken) in caplog.text
    with pytest.raises(UserError, match="nowhere"):
        run_page.write_run_page(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("data", "options", "verbs"),
    [
        ({}, {}, ["probe", "metrics", "finetune"]),
        ({"labels": False}, {}, ["metrics"]),
        ({"test_split": False}, {}, ["metrics --split train"]),
        ({}, {"num_classes": 10}, ["probe", "metrics"]),
        ({}, {"vocabulary_size": 50}, ["metrics", "probe"]),
        ({}, {"recipe": "nyu_depth"}, ["depth", "metrics"]),
    ],
)
def test_next_commands_fit_the_data(data, options, verbs, tmp_path):
    run = make_run(tmp_path / "a", **options)
    record = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(record | {"data": data}))
    commands = run_page.next_commands(run)
    assert len(commands) == len(verbs)
    for command, verb in zip(commands, verbs, strict=True):
        name, *flags = verb.split()
        assert f" {name} {run}" in command and set(flags) <= set(command.split())
