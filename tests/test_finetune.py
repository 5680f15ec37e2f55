"""Fine-tuning: what it trains, on which labels, and how it chooses and scores."""

import shutil

import jax
import numpy as np
import pytest
from run_states import assert_same_run, state_of

from hypersphere_jax import augment, data
from hypersphere_jax import configs as C
from hypersphere_jax.training import checkpoints, finetune, run_dir
from hypersphere_jax.utils.files import read_json

RATES = (1e-6, 0.2, 1e30)  # too low, good, and one that diverges


def config(folder, runs_dir, **changes):
    """Return the config of a fine-tuning on a tenth of the labels."""
    options = {"fraction": 0.1, "batch_size": 32, "epochs": 10, "name": "tuned"}
    options |= {"devices": 1, "log_every_steps": 10, "checkpoint_every_steps": 16}
    return C.FinetuneConfig(str(folder), runs_dir=str(runs_dir), **(options | changes))


@pytest.fixture(scope="module")
def tuned(image_run, once):
    """A fine-tuning of the encoder of step 28, with three learning rates (read only)."""

    def make(folder):
        options = {"step": 28, "learning_rates": RATES}
        finetune.run_finetune(config(image_run, folder, **options))

    return once("tuned", make) / "tuned"


def test_held_out_labels_are_not_trained_on():
    whole = data.load(C.DataConfig())
    held = finetune.held_out(whole, 0.1, 0)
    trained, all_labels = (data.load(C.DataConfig(fraction=f)).train for f in (0.08, 0.1))
    assert not set(held.indices) & set(trained.indices)
    assert set(held.indices) | set(trained.indices) == set(all_labels.indices)
    expected = [round(0.1 * n) - round(0.08 * n) for n in np.bincount(whole.train.labels)]
    assert np.bincount(held.labels).tolist() == expected


def test_best_rate_is_the_smallest_of_equals():
    assert finetune.best_rate((0.2, 0.05, 0.1), (80.0, 80.0, 79.0)) == 0.05
    assert finetune.best_rate((0.2, 0.05, 0.1), (80.5, 80.0, 80.5)) == 0.1
    assert finetune.best_rate((0.05, 0.1), (None, 0.0)) == 0.1
    with pytest.raises(C.UserError, match="learning_rates"):
        finetune.best_rate((0.05, 0.1), (None, None))


@pytest.mark.slow
def test_only_the_classifier_loss_is_trained_with_weak_augmentation(tuned, image_run):
    made = run_dir.read_config(tuned)
    source = run_dir.read_config(image_run)
    expected = C.section(source, C.DataConfig).replace(fraction=0.1, recipe="digits:crop_flip")
    assert C.section(made, C.DataConfig) == expected
    assert (made.align_weight, made.uniform_weight, made.supervised_weight) == (0, 0, 1)
    assert (made.classifier_layer, made.num_classes, made.dim) == ("backbone", 10, source.dim)
    assert (made.schedule, made.nesterov, made.weight_decay) == ("cosine", True, 0)


@pytest.mark.slow
def test_training_starts_from_the_encoder_and_leaves_its_head(tuned, image_run):
    start = state_of(tuned, 0)["params"]
    end = state_of(tuned)["params"]
    source = state_of(image_run, 28)["params"]
    assert start["head"].pop("classifier")["kernel"].shape[1] == 10
    jax.tree.map(np.testing.assert_array_equal, start, source)
    end["head"].pop("classifier")
    jax.tree.map(np.testing.assert_array_equal, end["head"], source["head"])
    kernels = [params["conv1"]["layer"]["kernel"] for params in (start, end)]
    assert not np.isclose(*kernels, atol=1e-6).all()


def scores_by_hand(folder, source):
    """Return top-1 and top-5 accuracy of a run's classifier."""
    encoder = run_dir.load_encoder(folder)
    images = np.stack([source[i]["image"] for i in range(len(source))])
    x = jax.vmap(augment.make_evaluate("digits", 8))(images)
    logits = jax.jit(lambda x: encoder.apply(encoder.params, encoder.stats, x, False)[0]["logits"])
    hits = np.argsort(-np.asarray(logits(x)), axis=1) == np.asarray(source.labels)[:, None]
    return 100 * hits[:, 0].mean(), 100 * hits[:, :5].any(axis=1).mean()


@pytest.mark.slow
def test_rate_is_chosen_on_held_out_labels_and_scored_on_the_test_split(tuned):
    result = read_json(tuned / "eval" / "finetune.json")
    whole = data.load(C.DataConfig())
    held = finetune.held_out(whole, 0.1, 0)
    candidates = [tuned / "learning_rates" / str(rate) for rate in RATES[:2]]
    valid = [scores_by_hand(folder, held)[0] for folder in candidates]
    assert result["valid_top1"] == [*map(pytest.approx, valid), None]
    assert valid[1] > valid[0] + 5
    assert [run_dir.read_config(folder).fraction for folder in candidates] == [
        pytest.approx(0.08)
    ] * 2
    assert result["chosen"] == {"learning_rate": 0.2}
    top1, top5 = scores_by_hand(tuned, whole.test)
    np.testing.assert_allclose([result["top1"], result["top5"]], [top1, top5], atol=1e-9)
    counts = {"n": 397, "labels": 140, "n_valid": len(held), "num_classes": 10}
    counts |= {"split": "test", "step": 40, "init_step": 28, "fraction": 0.1}
    assert result | counts == result


@pytest.mark.slow
def test_killed_fine_tuning_resumes_to_the_same_result(tuned, image_run, tmp_path):
    """Killed in the first candidate, and in the final run."""
    folder = shutil.copytree(tuned, tmp_path / "tuned")
    (folder / "eval" / "finetune.json").unlink()
    for run in (folder, folder / "learning_rates" / str(RATES[0])):
        newest = checkpoints.steps(run / "checkpoints")[-1]
        shutil.rmtree(run / "checkpoints" / str(newest))
    finetune.run_finetune(config(image_run, tmp_path, step=28, learning_rates=RATES))
    assert_same_run(folder, tuned)
    results = [read_json(run / "eval" / "finetune.json") for run in (folder, tuned)]
    assert results[0] == results[1]
