"""Runs that go on: by their name alone, with another number of epochs, and on another schedule."""

import json
import shutil

import pytest
import tiny_runs
from run_states import assert_same_run

from hypersphere_jax import configs as C
from hypersphere_jax.training import loop, run_folder

EXTEND = C.RuntimeConfig(devices=2, log_every_steps=2, checkpoint_every_steps=3, extend=True)


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
        config, record = parsed(folder), run_folder.read_config(folder)
        assert C.to_dict(config) == C.to_dict(record)
        assert f"options as recorded in {folder}/config.json" in capsys.readouterr().err
        opened = loop.open_job(config).config  # what the data filled in stays
        assert run_folder.training_config(opened) == run_folder.training_config(record)
    record = run_folder.read_config(short_run)
    assert parsed(short_run, "--epochs", "7") == record.replace(epochs=7)
    # An experiment, or another name, has its own.
    experiment = parsed(short_run, "moco_cifar10/align_uniform")
    assert experiment.queue_size and experiment.name == "short"
    other = tiny_runs.parse_pretrain("--runs-dir", str(short_run.parent))
    assert other == C.PretrainConfig(runs_dir=str(short_run.parent))


def test_options_of_one_session_are_not_kept(short_run, tmp_path):
    folder = shutil.copytree(short_run, tmp_path / "moved" / "other")
    changes = {"resume": "never", "log_every_steps": 5}
    runtime = C.RuntimeConfig(devices=1, extend=True, **changes)
    kept = run_folder.of_all_sessions(runtime)
    assert kept == C.RuntimeConfig(devices=1, log_every_steps=5)
    # The last session's are the next one's; name and place are where the run is now.
    runtime = C.RuntimeConfig(devices=1, log_every_steps=5)
    loop.train(tiny_runs.short(tmp_path / "moved", "other", runtime=runtime))
    config = parsed(folder)
    assert (C.section(config, C.RuntimeConfig), config.name) == (runtime, "other")
    assert run_folder.folder_of(config) == folder


@pytest.mark.slow
def test_another_schedule_needs_extend_and_is_recorded(killed_run, short_run, tmp_path):
    """The remaining steps follow the new schedule."""
    folder = edited(killed_run, tmp_path, epochs=4)
    before = (folder / "config.json").read_bytes()
    with pytest.raises(C.UserError, match="epochs: 4 -> 2"):
        loop.train(tiny_runs.short(tmp_path))
    with pytest.raises(C.UserError, match="epochs=2"):  # step 9 of 6 per epoch
        loop.train(tiny_runs.short(tmp_path, runtime=EXTEND).replace(epochs=1, decay_at=()))
    assert (folder / "config.json").read_bytes() == before
    loop.train(tiny_runs.short(tmp_path, runtime=EXTEND))
    assert_same_run(folder, short_run)  # whose first nine steps have the same rates
    assert sessions(folder)[-1]["extended"] and sessions(folder)[-1]["from_step"] == 9
    assert not run_folder.read_config(folder).extend
    loop.train(parsed(folder))
    assert "extended" not in sessions(folder)[-1]
    with pytest.raises(C.UserError, match="shrt"):
        loop.train(tiny_runs.short(tmp_path, "shrt", runtime=EXTEND))
    assert not (tmp_path / "shrt").exists()


def test_runs_are_found_by_name(short_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs = short_run.parent
    assert run_folder.find("short", runs) == run_folder.find(str(short_run)) == short_run
    for name, where, said in (
        ("shrot", runs, "no run 'shrot'; did you mean 'short'"),
        ("mine", runs, f"no run 'mine'; the runs in {runs} are short$"),
        ("mine", "runs", "no run 'mine', nor any other in runs: give its folder, or runs_dir="),
    ):
        with pytest.raises(C.UserError, match=said):
            run_folder.find(name, where)
