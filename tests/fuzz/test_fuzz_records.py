"""JSON and YAML that is damaged, or says something else: of runs, results, corpora, options."""

import json
from pathlib import Path

from fuzzing import fuzz, is_same
from hypothesis import strategies as st
from junk import edited, edits

OPTIONS = {
    "seed": 3,
    "data": "digits",
    "fraction": 0.5,
    "model": "small_cnn",
    "dim": 8,
    "image_size": None,
    "epochs": 2,
    "decay_at": [1],
    "learning_rate": 0.1,
}
RESULT = {"run": "images", "step": 56, "layer": "output", "protocol": "knn", "top1": 80.0, "n": 397}


def edit_file(file, edit):
    Path(file).write_bytes(edited(Path(file).read_bytes(), edit))


@fuzz(25, edit=edits, verb=st.sampled_from(("export", "export", "pretrain", "report")))
def test_config_of_a_run(place, edit, verb):
    """Its encoder is the same, or there is an error."""
    folder, (expected, _) = place.run(), place.exported(good=True)
    edit_file(folder / "config.json", edit)
    if verb == "export":
        arrays, _ = place.exported()
        assert arrays is None or is_same(arrays, expected)
    elif verb == "pretrain":
        assert place.call("pretrain", "--name", "images", "--resume", "never").status == 2
    else:
        place.call("report", "images", changes=("runs/*",))


@fuzz(25, edit=edits, name=st.sampled_from(("o.json", "o.yaml")))
def test_options_in_a_file(place, edit, name):
    place.put(name, edited(json.dumps(OPTIONS).encode(), edit))
    # There are not so many devices: an error once the file is read.
    assert place.call("pretrain", "--config", name, "--devices", "77").status == 2


@fuzz(10, edit=edits)
def test_about_a_corpus(place, edit):
    place.put("a.txt", "The ship saw the sea. The king left the hall.\n" * 9)
    line = ("data", "prepare-text", "a.txt", "--out", "corpus")
    place.call(*line)
    edit_file("corpus/corpus.json", edit)
    place.call("data", "inspect", "corpus")
    place.call(*line, changes=("corpus*",))


@fuzz(4, edit=edits, file=st.sampled_from(("metrics.jsonl", "eval/knn5-output.json")))
def test_results_of_a_run(place, edit, file):
    """A page is written, or there is an error."""
    folder = place.run()
    place.put("runs/images/eval/knn5-output.json", json.dumps(RESULT))
    if isinstance(edit, list) and file == "metrics.jsonl":
        records = [json.loads(line) for line in (folder / file).read_text().splitlines()]
        records = json.loads(edited(json.dumps(records).encode(), edit))
        (folder / file).write_text("".join(f"{json.dumps(record)}\n" for record in records))
    else:
        edit_file(folder / file, edit)
    place.call("report", "images", changes=("runs/*",))


@fuzz(8, only_slow=True, edit=edits, which=st.integers(0, 1))
def test_prepared_data(place, edit, which):
    """A folder of TensorFlow Datasets."""
    import tfds_cases  # which imports TensorFlow Datasets

    records = [tfds_cases.example(image) for image in tfds_cases.noise(6)]
    folder = tfds_cases.write(place.work / "data", {"train": [records], "test": [records[:3]]})
    edit_file(sorted(folder.glob("*.json"))[which], edit)
    place.call("data", "inspect", "shapes", "--data-dir", "data", "--sample", "4")
