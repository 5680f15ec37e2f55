"""Resuming runs: by name alone, with other options, with other data."""

import json
import shutil

import pytest
import tiny_runs
from run_states import assert_same_run

from hypersphere_jax import configs as C
from hypersphere_jax.data import arrays
from hypersphere_jax.training import checkpoints, run_dir
from hypersphere_jax.training import train as training
from hypersphere_jax.training.setup import set_up

FORCE = C.RuntimeConfig(devices=2, log_every_steps=2, checkpoint_every_steps=3, force=True)


def parsed(folder, *flags):
    named = ["--name", folder.name, "--runs-dir", str(folder.parent)]
    return tiny_runs.parse_pretrain(*flags, *named)


def edited(run, to, **changes):
    """A copy of a run that was begun with another schedule."""
    folder = shutil.copytree(run, to / run.name)
    record = json.loads((folder / "config.json").read_text())
    record["config"] |= changes
    (folder / "config.json").write_text(json.dumps(record))
    return folder


def sessions(folder):
    return json.loads((folder / "config.json").read_text())["sessions"]


def test_a_name_alone_gives_the_options_of_the_run(short_run, queue_run, text_run, capsys):
    for folder in (short_run, queue_run, text_run):
        config, record = parsed(folder), run_dir.read_config(folder)
        assert C.to_dict(config) == C.to_dict(record)
        assert f"options as recorded in {folder}/config.json" in capsys.readouterr().err
        opened = set_up(config).config  # what the data filled in stays
        assert run_dir.training_config(opened) == run_dir.training_config(record)
    record = run_dir.read_config(short_run)
    assert parsed(short_run, "--epochs", "7") == record.replace(epochs=7)
    # An experiment, or another name, has its own.
    experiment = parsed(short_run, "moco_cifar10/align_uniform")
    assert experiment.queue_size and experiment.name == "short"
    other = tiny_runs.parse_pretrain("--runs-dir", str(short_run.parent))
    assert other == C.PretrainConfig(runs_dir=str(short_run.parent))


def test_options_of_one_session_are_not_kept(short_run, tmp_path):
    folder = shutil.copytree(short_run, tmp_path / "moved" / "other")
    changes = {"resume": "never", "log_every_steps": 5}
    runtime = C.RuntimeConfig(devices=1, force=True, **changes)
    inherited = run_dir.inherited_options(runtime)
    assert inherited == C.RuntimeConfig(devices=1, log_every_steps=5)
    # The last session's are the next one's; name and place are where the run is now.
    runtime = C.RuntimeConfig(devices=1, log_every_steps=5)
    training.train(tiny_runs.short(tmp_path / "moved", "other", runtime=runtime))
    config = parsed(folder)
    assert (C.section(config, C.RuntimeConfig), config.name) == (runtime, "other")
    assert run_dir.folder_of(config) == folder


def test_other_options_need_force_and_are_recorded(killed_run, short_run, tmp_path):
    """The remaining steps follow the new options."""
    folder = edited(killed_run, tmp_path, epochs=4, weight_decay=0.5)
    before = (folder / "config.json").read_bytes()
    with pytest.raises(C.UserError, match=r"epochs: 4 -> 2.*weight_decay: 0\.5 -> .*force=True"):
        training.train(tiny_runs.short(tmp_path))
    assert (folder / "config.json").read_bytes() == before
    training.train(tiny_runs.short(tmp_path, runtime=FORCE))
    assert_same_run(folder, short_run)  # whose first nine steps have the same rates
    session = sessions(folder)[-1]
    assert [change.split(":")[0] for change in session["forced"]] == [
        "epochs",
        "weight_decay",
    ]
    assert session["from_step"] == 9
    assert not run_dir.read_config(folder).force
    training.train(parsed(folder))
    assert "forced" not in sessions(folder)[-1]


def test_forced_options_without_a_difference_are_not_recorded(short_run, tmp_path):
    folder = shutil.copytree(short_run, tmp_path / "short")
    runtime = C.RuntimeConfig(devices=1, pipeline="streaming", log_every_steps=7, force=True)
    evaluate = C.EvaluateConfig(2, ("align_uniform",), 200)
    training.train(tiny_runs.short(tmp_path, runtime=runtime, evaluate=evaluate))
    assert "forced" not in sessions(folder)[-1]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"dim": 4, "width": 0.1}, "head/output"),
        ({"optimizer": "adam", "epochs": 2, "batch_size": 220}, "opt_state"),
        ({"epochs": 1, "batch_size": 220}, "epochs=1"),
        ({"devices": 2, "resume": "never", "force": True}, "resume=never"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_under_force(changes, said, short_run, tmp_path):
    folder = shutil.copytree(short_run, tmp_path / "short")
    before = (folder / "config.json").read_bytes()
    with pytest.raises(C.UserError, match=said) as error:
        training.train(tiny_runs.short(tmp_path, **({"runtime": FORCE} | changes)))
    assert "\n" not in str(error.value)
    assert (folder / "config.json").read_bytes() == before
    assert checkpoints.steps(folder / "checkpoints") == [0, 6, 9, 12]


def test_other_data_need_force_and_are_recorded(short_run, tmp_path, monkeypatch):
    folder = shutil.copytree(short_run, tmp_path / "short")
    train, test = arrays.digits()
    train.images[0, 0, 0] ^= 1
    monkeypatch.setattr(arrays, "digits", lambda: (train, test))
    with pytest.raises(C.UserError, match="images or labels"):
        training.train(tiny_runs.short(tmp_path))
    training.train(tiny_runs.short(tmp_path, runtime=FORCE))
    assert len(sessions(folder)[-1]["forced"]) == 1
    run_dir.load_data(folder)


def test_runs_are_found_by_name(short_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs = short_run.parent
    assert run_dir.find("short", runs) == run_dir.find(str(short_run)) == short_run
    for name, where, said in (
        ("shrot", runs, "no run 'shrot'; did you mean 'short'"),
        ("mine", runs, f"no run 'mine'; the runs in {runs} are short$"),
        ("mine", "runs", "no run 'mine', nor any other in runs: give its folder, or runs_dir="),
    ):
        with pytest.raises(C.UserError, match=said):
            run_dir.find(name, where)
