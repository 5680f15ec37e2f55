"""Damaged JSON and YAML files of runs, results, corpora and options."""

import json

from fuzzing import fuzz, is_same
from hypothesis import strategies as st
from junk import WHOLE, edited, edits, option_edits

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


whole = st.sampled_from(WHOLE)  # another text in place of the file's
commands = st.sampled_from(("export", "export", "pretrain", "report"))


def edit_options(file, edit):
    """Change the options in the record of a run, or replace the whole record."""
    if not isinstance(edit, list):
        file.write_text(edit)
        return
    record = json.loads(file.read_text())
    record["config"] = json.loads(edited(json.dumps(record["config"]), edit))
    file.write_text(json.dumps(record))


@fuzz(25, edit=whole | option_edits, command=commands)
def test_config_of_a_run(place, edit, command):
    """The encoder is the same, or an error is reported."""
    folder = place.run()
    expected, _ = place.exported(good=True)
    edit_options(folder / "config.json", edit)
    if command == "export":
        arrays, _ = place.exported()
        assert arrays is None or is_same(arrays, expected)
    elif command == "pretrain":
        assert place.call("pretrain", "--name", "images", "--resume", "never").status == 2
    else:
        place.call("report", "images", changes=("runs/*",))


@fuzz(25, edit=edits, name=st.sampled_from(("o.json", "o.yaml")))
def test_options_in_a_file(place, edit, name):
    place.put(name, edited(json.dumps(OPTIONS).encode(), edit))
    # There are not so many devices: an error once the file is read.
    assert place.call("pretrain", "--config", name, "--devices", "77").status == 2


@fuzz(10, content=whole)
def test_record_of_a_corpus(place, content):
    place.put("a.txt", "The ship saw the sea. The king left the hall.\n" * 9)
    line = ("data", "prepare-text", "a.txt", "--out", "corpus")
    place.call(*line)
    place.put("corpus/corpus.json", content)
    assert place.call("data", "inspect", "corpus").status == 2
    place.call(*line, changes=("corpus*",))


@fuzz(4, content=whole, file=st.sampled_from(("metrics.jsonl", "eval/knn5-output.json")))
def test_results_of_a_run(place, content, file):
    """A page is written without the damaged result."""
    place.run()
    place.put("runs/images/eval/knn5-output.json", json.dumps(RESULT))
    place.put(f"runs/images/{file}", content)
    assert place.call("report", "images", changes=("runs/*",)).status == 0


@fuzz(8, slow=True, content=whole, which=st.integers(0, 1))
def test_prepared_data(place, content, which):
    """A folder of TensorFlow Datasets."""
    import tfds_cases  # which imports TensorFlow Datasets

    records = [tfds_cases.example(image) for image in tfds_cases.noise(6)]
    folder = tfds_cases.write(place.work / "data", {"train": [records], "test": [records[:3]]})
    sorted(folder.glob("*.json"))[which].write_text(content)
    place.call("data", "inspect", "shapes", "--data-dir", "data", "--sample", "4")
