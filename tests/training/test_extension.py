"""Runs that go on: by their name alone, with another number of epochs, and on another schedule."""

import json
import shutil

import pytest
import tiny_runs
from run_states import assert_same_run, killed_after_checkpoint

from hypersphere_jax import cli
from hypersphere_jax import config as C
from hypersphere_jax.training import loop, run_folder
from hypersphere_jax.training.extension import is_extension, schedule_of
from hypersphere_jax.training.metrics_log import read_metrics

SPE = 6  # steps per epoch, as of `tiny_runs.short`
EXTEND = C.RuntimeConfig(devices=2, log_every_steps=2, checkpoint_every_steps=3, extend=True)


def parsed(folder, *flags):
    named = ["--name", folder.name, "--runs-dir", str(folder.parent)]
    return cli._parse(C.PretrainConfig, "pretrain", [*flags, *named])


def edited(run, to, **changes):
    """A copy of a run that was begun with another schedule."""
    folder = shutil.copytree(run, to / run.name)
    record = json.loads((folder / "config.json").read_text())
    record["config"]["optimizer"] |= changes
    record["sessions"][0]["schedule"] |= changes
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
    assert experiment.moco.queue_size and experiment.name == "short"
    other = cli._parse(C.PretrainConfig, "pretrain", ["--runs-dir", str(short_run.parent)])
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
    assert (config.runtime, config.name) == (runtime, "other")
    assert run_folder.folder_of(config) == folder


@pytest.mark.parametrize(
    "old, new, same",  # up to how many steps
    [
        ({"epochs": 3, "decay_at": ()}, {"epochs": 6}, 18),
        ({"epochs": 3}, {"epochs": 6}, 14),  # the first decay: after 0.775 of 18 steps
        ({"epochs": 6}, {"epochs": 3}, 14),
        ({"epochs": 4, "decay_at": (0.5,)}, {"epochs": 8, "decay_at": (0.25,)}, 24),
        ({"epochs": 4, "decay_at": (0.5,)}, {"epochs": 8}, 12),
        ({"epochs": 4, "schedule": "cosine"}, {"epochs": 8}, 1),
        # The cosine begins with the peak, after the warm-up.
        ({"epochs": 4, "schedule": "cosine", "warmup_epochs": 2}, {"epochs": 8}, 13),
        ({"epochs": 3, "decay_at": (), "queue_size": 9}, {"epochs": 6}, 18),
        (
            {"epochs": 3, "decay_at": (), "queue_size": 9, "ema_schedule": "cosine"},
            {"epochs": 6},
            1,
        ),
    ],
)
def test_goes_on_while_the_schedule_is_the_same(old, new, same, tmp_path):
    old = C.PretrainConfig(**old)
    new, allowed = old.replace(**new), old.replace(**new, extend=True)
    assert not is_extension(tmp_path, [], old, old, SPE, 18)
    assert not is_extension(tmp_path, [], old, new, SPE, same)
    if same < min(old.optimizer.epochs, new.optimizer.epochs) * SPE:
        with pytest.raises(C.UserError, match=f"extend= goes on with steps {same + 2} to "):
            is_extension(tmp_path, [], old, new, SPE, same + 1)
        assert is_extension(tmp_path, [], old, allowed, SPE, same + 1)


def test_what_no_epochs_can_continue(tmp_path):
    old = C.PretrainConfig(epochs=6, extend=True)
    with pytest.raises(C.UserError, match=r"at epoch 2\.5: give epochs=3 or more, not 2"):
        is_extension(tmp_path, [], old, old.replace(epochs=2), SPE, 15)
    with pytest.raises(C.UserError, match="no step is left"):
        is_extension(tmp_path, [], old, old.replace(epochs=3), SPE, 18)
    # The steps of an extended run had several schedules: here three epochs, then six.
    had = [
        {"from_step": start, "schedule": schedule_of(C.PretrainConfig(epochs=epochs))}
        for start, epochs in ((0, 3), (18, 6))
    ]
    more = old.replace(epochs=9, extend=False)
    assert not is_extension(tmp_path, [], old, more, SPE, 20)
    with pytest.raises(C.UserError, match=r"step 18: 0\.00012 -> 0\.12"):
        is_extension(tmp_path, had, old, more, SPE, 20)


def test_a_run_goes_on_with_other_epochs(killed_run, short_run, tmp_path):
    """Begun with four: the first nine steps of two have the same rates."""
    folder = edited(killed_run, tmp_path, epochs=4)
    loop.train(tiny_runs.short(tmp_path))
    assert_same_run(folder, short_run)
    first, last = sessions(folder)
    assert first["schedule"]["epochs"] == 4 and "extended" not in last
    assert (last["from_step"], last["schedule"]["epochs"]) == (9, 2)


def test_an_extended_run_says_so(killed_run, short_run, tmp_path):
    """From the ninth step on it takes those of `short`, on whose schedule it was not begun."""
    folder = edited(killed_run, tmp_path, decay_at=[0.5])
    before = (folder / "config.json").read_bytes()
    with pytest.raises(C.UserError, match=r"step 7: 0.0103 -> 0.103\): extend= .* steps 10 to 12"):
        loop.train(tiny_runs.short(tmp_path))
    assert (folder / "config.json").read_bytes() == before
    loop.train(tiny_runs.short(tmp_path, runtime=EXTEND))
    assert_same_run(folder, short_run)
    assert sessions(folder)[-1]["extended"] and sessions(folder)[-1]["from_step"] == 9
    assert not run_folder.read_config(folder).runtime.extend
    loop.train(parsed(folder))  # without --extend: it is under way
    assert "extended" not in sessions(folder)[-1]
    with pytest.raises(C.UserError, match="extend=: no run 'shrt'; did you mean 'short'"):
        loop.train(tiny_runs.short(tmp_path, "shrt", runtime=EXTEND))
    assert not (tmp_path / "shrt").exists()


def test_a_run_of_before_init_keeps_its_network_and_its_crops(short_run, tmp_path):
    """`simclr_*` had torchvision's crops when configs had no `init`; what is recorded now stays."""
    file = shutil.copytree(short_run, tmp_path / "old") / "config.json"
    record = json.loads(file.read_text())
    for recipe, then in (
        ("simclr_cifar", "simclr_cifar_torchvision"),
        ("simclr_imagenet:crop_flip", "simclr_imagenet_torchvision:crop_flip"),
        ("simclr_cifar_torchvision", "simclr_cifar_torchvision"),
        ("moco_v2", "moco_v2"),
        (None, None),
    ):
        record["config"]["data"]["recipe"] = recipe
        for init, expected in (("torch", (recipe, "torch")), (None, (then, "he"))):
            record["config"]["model"].pop("init", None)
            record["config"]["model"] |= {"init": init} if init else {}
            file.write_text(json.dumps(record))
            config = run_folder.read_config(file.parent)
            assert (config.data.recipe, config.model.init) == expected


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


@pytest.mark.slow
def test_three_epochs_and_three_are_six(tmp_path):
    """With a queue, on two devices; and what `--extend` does is the same after a kill."""

    def train(name, *flags):
        return loop.train(parsed(tmp_path / name, *flags))

    tiny = ["--width", "0.1", "--dim", "3", "--batch-size", "208", "--devices", "2"]
    tiny += ["--checkpoint-every-steps", "5"]
    queue = [*tiny, "--queue-size", "130", "--contrastive-weight", "1", "--decay-at"]
    train("parts", *queue, "--epochs", "3", "--log-every-steps", "6")
    parts = train("parts", "--epochs", "6")
    assert_same_run(parts, train("whole", *queue, "--epochs", "6", "--log-every-steps", "6"))

    cosine = [*tiny, "--schedule", "cosine"]
    train("extended", *cosine, "--epochs", "2")
    shutil.copytree(tmp_path / "extended", tmp_path / "killed")
    extended = train("extended", "--epochs", "4", "--extend")
    with killed_after_checkpoint(15):
        train("killed", "--epochs", "4", "--extend")
    assert_same_run(train("killed"), extended)
    assert ["extended" in session for session in sessions(extended)] == [False, True]
    rates = [record["lr"] for record in read_metrics(extended)]
    assert (
        rates[1]
        < 0.01
        < rates[2]
        == read_metrics(train("start", *cosine, "--epochs", "4"))[1]["lr"]
    )
