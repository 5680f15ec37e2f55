"""Losses of other papers as objectives: the named loss, of the right layers, with its options."""

import dataclasses
import functools

import jax
import numpy as np
import oracles
import pytest
import tiny_runs
from steps_by_hand import assert_close

import hypersphere_jax as hj
from hypersphere_jax import configs as C
from hypersphere_jax import data
from hypersphere_jax.training import objectives
from hypersphere_jax.training.hparams import scalars_of, structure
from hypersphere_jax.training.objectives import make_objective
from hypersphere_jax.training.resolve import resolve

KEY = jax.random.key(5)
# Arguments of the loss function; "raw" losses take features that are not normalized.
CASES = {
    "nt_xent": {"tau": 0.3},
    "nt_xent raw dot": {"similarity": "dot"},
    "decoupled_nt_xent": {},
    "decoupled_nt_xent per dimension": {"tau": 0.4, "lam": 0.02, "scaling": "per_dimension"},
    "generalized_contrastive": {},
    "generalized_contrastive raw normal": {"prior": "normal", "lam": 0.5},
    "generalized_contrastive raw cube": {"prior": "hypercube", "scaling": "per_sample"},
    "dcl": {"tau": 0.2},
    "balanced_contrastive": {"alpha": 3.0, "lam": 1.5},
    "generalized_nt_xent": {"lam": 0.0},
    "logsumexp": {"tau": 0.2},
    "prior_matching": {},
    "prior_matching raw normal": {"prior": "normal"},
    "lejepa raw": {"lam": 0.1},
    "visreg raw": {},
}
RANDOM = ("generalized_contrastive", "prior_matching", "lejepa", "visreg")
OPTIONS = {"tau": "loss_tau", "alpha": "loss_alpha", "lam": "loss_lam", "scaling": "align_scaling"}
BASE = {"loss_factor": 2.0, "supervised_weight": 0.3, "align_alpha": 1.0, "uniform_t": 3.0}
LABELS = np.arange(6) % 3


def view(seed):
    """Return the layers of 6 images with 4 dimensions and 3 classes."""
    raw, logits = 1.5 * np.random.default_rng(seed).standard_normal((2, 6, 4), np.float32)
    output = raw / np.linalg.norm(raw, axis=1, keepdims=True)
    return {"unnormalized": raw, "output": output, "logits": logits[:, 1:]}


VIEWS = (view(3), view(4))


def config_of(case):
    options = {OPTIONS.get(name, name): value for name, value in CASES[case].items()}
    return C.ObjectiveConfig(loss=case.split()[0], **BASE, **options)


def layers_of(case):
    layer = "unnormalized" if "raw" in case else "output"
    return [view[layer] for view in VIEWS]


def loss_of(case):
    """Return the value of a case's loss function."""
    name = case.split()[0]
    key = [KEY] if name in RANDOM else []
    loss = functools.partial(getattr(hj, f"{name}_loss"), *key, **CASES[case])
    if name in ("logsumexp", "prior_matching"):  # losses of one view
        return sum(map(loss, layers_of(case))) / 2
    return loss(*layers_of(case))


def evaluate(configs):
    """Return loss and metrics of each config."""
    made = {case: make_objective(config) for case, config in configs.items()}
    return jax.jit(lambda views: {c: made[c](*views, LABELS, None, KEY) for c in made})(VIEWS)


@pytest.fixture(scope="module")
def evaluated():
    return evaluate({case: config_of(case) for case in CASES})


def test_objective_is_the_named_loss_of_both_views(evaluated):
    """The factor scales neither the terms nor the supervised loss."""
    losses = jax.jit(lambda: {case: loss_of(case) for case in CASES})()
    x, y = layers_of("")
    uniform = (hj.uniform_loss(x, 3.0) + hj.uniform_loss(y, 3.0)) / 2
    logits = np.float64([view["logits"] for view in VIEWS])
    entropy = np.log(np.exp(logits).sum(2)).mean() - logits[:, np.arange(6), LABELS].mean()
    for case, (loss, metrics) in evaluated.items():
        close = functools.partial(np.testing.assert_allclose, rtol=1e-5, err_msg=case)
        close(loss, 2 * losses[case] + 0.3 * entropy)
        logged = [metrics[name] for name in ("align", "uniform", "supervised")]
        close(logged, [np.linalg.norm(x - y, axis=1).mean(), uniform, entropy])
        lam = objectives.with_loss_defaults(config_of(case)).loss_lam
        assert ("loss_alignment" in metrics) == (lam is not None), case
        if lam is not None:
            share = 1 - lam if "jepa" in case or "visreg" in case else 1
            terms = share * metrics["loss_alignment"] + lam * metrics["loss_distribution"]
            close(terms, losses[case])
    term = hj.generalized_nt_xent_loss(x, y, lam=1.0) - losses["generalized_nt_xent"]
    close(evaluated["generalized_nt_xent"][1]["loss_distribution"], term)  # also at lam = 0


@tiny_runs.needs_devices(2)
def test_objective_on_two_devices_equals_one(evaluated):
    cases = ("generalized_contrastive raw normal", "dcl")
    made = {case: make_objective(config_of(case)) for case in cases}

    def part(labels, *views):
        return {case: made[case](*views, labels, "data", KEY) for case in cases}

    halves = jax.tree.map(lambda layer: layer.reshape(2, 3, *layer.shape[1:]), (LABELS, *VIEWS))
    mapped = jax.pmap(part, axis_name="data", devices=jax.devices()[:2])(*halves)
    expected = {case: jax.tree.map(lambda x: np.stack([x, x]), evaluated[case]) for case in cases}
    assert_close(mapped, expected)


def test_supervised_contrastive_loss_of_both_views():
    """An image without a label has its other view as the only positive."""
    labels = np.array([0, 1, -1, 1, 2, -1])
    config = C.ObjectiveConfig(loss="supervised_contrastive", loss_factor=2.0)
    objective = make_objective(config)
    found, _ = jax.jit(lambda: objective(*VIEWS, labels, None, KEY))()
    classes = np.tile([0, 1, 7, 1, 2, 8], 2)
    views = np.concatenate(layers_of(""))
    expected = 2 * oracles.supervised_contrastive_oracle(views, classes)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    if jax.device_count() > 1:
        halves = jax.tree.map(lambda x: x.reshape(2, 3, *x.shape[1:]), (*VIEWS, labels))
        loss = jax.pmap(lambda *views: objective(*views, "data", KEY)[0], "data")
        np.testing.assert_allclose(loss(*halves), [expected] * 2, rtol=1e-5)


@pytest.mark.parametrize(
    "options", [{"supervised_weight": 1.0}, {"loss": "supervised_contrastive"}]
)
def test_labels_of_one_class_are_refused(options, tmp_path):
    config = tiny_runs.short(tmp_path, **options)
    images = np.zeros((64, 8, 8, 1), np.uint8)
    with pytest.raises(C.UserError, match="one class"):
        hj.train(config, images=images, labels=np.arange(64) // 32 - 1)
    assert not list(tmp_path.iterdir())


def test_vmapped_objectives_have_their_own_scalars(evaluated):
    common = {"loss_factor": 1e3, "supervised_weight": 0.7, "align_alpha": 2.0, "uniform_t": 2.0}
    changes = {
        "decoupled_nt_xent": {"loss_tau": 0.9, "loss_lam": 0.3},
        "balanced_contrastive": {"loss_alpha": 2.2, "loss_lam": 0.7},
    }
    dataset = data.load(C.PretrainConfig())
    pairs = {}
    scalars = {}
    for case, change in changes.items():
        base = config_of(case)
        pairs[case] = (base, dataclasses.replace(base, **change, **common))
        configs = [C.PretrainConfig(**vars(objective)) for objective in pairs[case]]
        assert structure(configs[0]) == structure(configs[1])
        values = [scalars_of(resolve(config, dataset)) for config in configs]
        scalars[case] = jax.tree.map(lambda *x: np.stack(x), *values)

    def objective(case, scalars):
        return make_objective(pairs[case][0], scalars)(*VIEWS, LABELS, None, KEY)

    vmap = {case: jax.vmap(functools.partial(objective, case)) for case in changes}
    vmapped = jax.jit(lambda scalars: {case: vmap[case](scalars[case]) for case in vmap})(scalars)
    alone = evaluate({case: pair[1] for case, pair in pairs.items()})
    for case in changes:
        expected = jax.tree.map(lambda *x: np.stack(x), evaluated[case], alone[case])
        assert_close(vmapped[case], expected)


@pytest.mark.parametrize(
    ("loss", "defaults"),
    [
        ("nt_xent", {"loss_tau": 0.5, "similarity": "cosine"}),
        ("decoupled_nt_xent", {"loss_tau": 1, "loss_lam": 0.1, "align_scaling": "per_sample"}),
        ("balanced_contrastive", {"loss_alpha": 4, "loss_lam": 2}),
        ("weighted", {}),
    ],
)
def test_defaults_of_a_loss_are_recorded(loss, defaults):
    dataset = data.load(C.PretrainConfig())
    config = C.PretrainConfig(loss=loss)
    resolved = resolve(config, dataset)
    expected = C.section(config.replace(**defaults), C.ObjectiveConfig)
    assert C.section(resolved, C.ObjectiveConfig) == expected
    assert resolve(resolved, dataset) == resolved
