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
METRICS = {"protocol": "metrics", "uniform": -3.7, "uniform_standard_error": 0.05, "align": 0.21}
HOSTILE = ("<script>alert(1)</script>", '"><img src=x>', "{{ 1 }}", "a\udcff", "&amp;")


def draw(path, size=(4, 3)):
    path.parent.mkdir(exist_ok=True)
    Image.fromarray(np.zeros((*size, 3), np.uint8)).save(path)


def test_page_escapes_names_and_embeds_pictures(tmp_path):
    draw(tmp_path / "a.png")
    table = Table(["name", HOSTILE[0]], [[name, 97.25] for name in HOSTILE], HOSTILE[1])
    section = Section(HOSTILE[0], HOSTILE, [table], {tmp_path / "a.png": HOSTILE[1]}, HOSTILE)
    path = write_page(tmp_path / "new" / "page.html", HOSTILE[0], [section])
    tags, texts, pictures = parse(path)
    assert [picture.size for picture in pictures] == [(3, 4)]
    assert not tags & {"script", "link"} and path.read_text().count("<img") == 1
    assert {name.encode(errors="backslashreplace").decode() for name in HOSTILE} <= set(texts)
    assert "http" not in path.read_text()


def test_page_shows_results_curves_options_and_sentences(tmp_path):
    results = {"lbfgs-output": PROBE, "metrics-test": METRICS}
    run = make_run(tmp_path / "digits & <more>", results=results, dim=33)
    draw(run / "figures" / "another.png", (7, 8))
    table = {"columns": ["x <y>"], "rows": [["A <b>."]]}
    (run / "figures" / "nearest_sentences.json").write_text(json.dumps(table))
    page = run_page.write_run_page(run)
    tags, texts, pictures = parse(page)
    assert page == run / "report.html" and run.name in texts and "b" not in tags
    assert {"97.25", "95.50, 98.25", "-3.700 ± 0.050", "0.2100", "x <y>", "A <b>."} <= set(texts)
    assert texts[texts.index("dim") + 1] == "33"
    assert len(pictures) == 2 and pictures[1].size == (8, 7)  # after the training curves


def test_pages_that_cannot_be_written_are_skipped(tmp_path, caplog):
    broken, sound = make_run(tmp_path / "broken"), make_run(tmp_path / "sound")
    (broken / "config.json").write_text("no JSON")
    assert run_page.update_pages([str(broken), str(sound)], "runs") == [sound / "report.html"]
    assert str(broken) in caplog.text
    with pytest.raises(UserError, match="nowhere"):
        run_page.write_run_page(tmp_path / "nowhere")
