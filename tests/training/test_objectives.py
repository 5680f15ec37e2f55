"""The other papers' losses as objectives: which function of which layers, and what goes along."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from steps_by_hand import assert_close

import hypersphere_jax as hj
from hypersphere_jax import configs as C
from hypersphere_jax import data
from hypersphere_jax.training import objectives
from hypersphere_jax.training.objectives import make_objective
from hypersphere_jax.training.resolve import resolve
from hypersphere_jax.training.step import scalars_of, structure

KEY = jax.random.key(5)
# A loss and what it is given by its function's names; "raw": features that are not normalized.
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
}
FLAGS = {"tau": "loss_tau", "alpha": "loss_alpha", "lam": "loss_lam", "scaling": "align_scaling"}
BASE = {"loss_factor": 2.0, "supervised_weight": 0.3, "align_alpha": 1.0, "uniform_t": 3.0}
LABELS = np.arange(6) % 3


def objective_of(case):
    options = {FLAGS.get(name, name): value for name, value in CASES[case].items()}
    return C.ObjectiveConfig(loss=case.split()[0], **BASE, **options)


def function_of(case):
    """The case's loss of both views."""
    name = case.split()[0]
    drawn = [KEY] if name in ("generalized_contrastive", "prior_matching") else []
    loss = functools.partial(getattr(hj, f"{name}_loss"), *drawn, **CASES[case])
    of_one = name in ("logsumexp", "prior_matching")
    return sum(map(loss, layers(case))) / 2 if of_one else loss(*layers(case))


def view(seed):
    """Layers of 6 images, 4 dimensions and 3 classes."""
    raw, logits = 1.5 * np.random.default_rng(seed).standard_normal((2, 6, 4), np.float32)
    output = raw / np.linalg.norm(raw, axis=1, keepdims=True)
    return {"unnormalized": raw, "output": output, "logits": logits[:, 1:]}


VIEWS = view(3), view(4)


def layers(case):
    return [view["unnormalized" if "raw" in case else "output"] for view in VIEWS]


def of_all(configs):
    """Loss and metrics of each."""
    made = {case: make_objective(config) for case, config in configs.items()}
    return jax.jit(lambda views: {c: made[c](*views, LABELS, None, KEY) for c in made})(VIEWS)


@pytest.fixture(scope="module")
def found():
    return of_all({case: objective_of(case) for case in CASES})


def test_objective_is_the_function_of_the_views(found):
    """The factor is not of the terms, nor of the labels' loss."""
    functions = jax.jit(lambda: {case: function_of(case) for case in CASES})()
    x, y = layers("")
    uniform = (hj.uniform_loss(x, 3.0) + hj.uniform_loss(y, 3.0)) / 2
    logits = np.float64([view["logits"] for view in VIEWS])
    entropy = np.log(np.exp(logits).sum(2)).mean() - logits[:, np.arange(6), LABELS].mean()
    for case, (loss, metrics) in found.items():
        close = functools.partial(np.testing.assert_allclose, rtol=1e-5, err_msg=case)
        close(loss, 2 * functions[case] + 0.3 * entropy)
        logged = [metrics[name] for name in ("align", "uniform", "supervised")]
        close(logged, [np.linalg.norm(x - y, axis=1).mean(), uniform, entropy])
        lam = objectives.with_loss_defaults(objective_of(case)).loss_lam
        assert ("loss_alignment" in metrics) == (lam is not None), case
        if lam is not None:
            total = metrics["loss_alignment"] + lam * metrics["loss_distribution"]
            close(total, functions[case])
    # At lam = 0 the other term is there all the same.
    term = hj.generalized_nt_xent_loss(x, y, lam=1.0) - functions["generalized_nt_xent"]
    close(found["generalized_nt_xent"][1]["loss_distribution"], term)


def test_devices_have_the_loss_of_one(found):
    """The same loss on each, of all devices' features and of the same draws."""
    cases = ("nt_xent", "generalized_contrastive raw normal", "prior_matching", "dcl")

    def part(labels, *views):
        made = {case: make_objective(objective_of(case)) for case in cases}
        return {case: made[case](*views, labels, "data", KEY) for case in cases}

    halves = jax.tree.map(lambda layer: layer.reshape(2, 3, *layer.shape[1:]), (LABELS, *VIEWS))
    mapped = jax.pmap(part, axis_name="data", devices=jax.devices()[:2])(*halves)
    expected = {case: jax.tree.map(lambda x: np.stack([x, x]), found[case]) for case in cases}
    assert_close(mapped, expected)


def test_numbers_as_arguments(found):
    """As of vmapped runs: each has the loss of its own config."""
    numbers = {"loss_factor": 1e3, "supervised_weight": 0.7, "align_alpha": 2.0, "uniform_t": 2.0}
    asked = {
        "decoupled_nt_xent": {"loss_tau": 0.9, "loss_lam": 0.3},
        "balanced_contrastive": {"loss_alpha": 2.2, "loss_lam": 0.7},
        "prior_matching raw normal": {},
        "dcl": {"loss_tau": 0.4},
    }
    dataset, held = data.load(C.PretrainConfig()), {}
    bases = {case: objective_of(case) for case in asked}
    others = {c: dataclasses.replace(bases[c], **own, **numbers) for c, own in asked.items()}
    for case in asked:
        made = [C.PretrainConfig(**vars(one)) for one in (bases[case], others[case])]
        assert len(set(map(structure, made))) == 1, case
        both = [scalars_of(resolve(one, dataset)) for one in made]
        held[case] = jax.tree.map(lambda *x: np.stack(x), *both)

    @jax.jit
    def together(held):
        def one(case, numbers):
            return make_objective(bases[case], numbers)(*VIEWS, LABELS, None, KEY)

        return {case: jax.vmap(functools.partial(one, case))(held[case]) for case in asked}

    different = [C.ObjectiveConfig(), C.ObjectiveConfig(align_weight=0), *bases.values()]
    assert len({structure(C.PretrainConfig(**vars(one))) for one in different}) == 6
    alone = of_all(others)
    for case, mine in together(held).items():
        expected = jax.tree.map(lambda *x: np.stack(x), found[case], alone[case])
        assert_close(mine, expected)


def test_defaults_are_filled_in():
    """Those that the help names, so that config.json has them; what is given stays."""
    chen = {"prior": "hypersphere", "align_scaling": "per_dimension"}
    dataset = data.load(C.PretrainConfig())
    for loss, filled in (
        ("nt_xent", {"loss_tau": 0.5, "similarity": "cosine"}),
        ("decoupled_nt_xent", {"loss_tau": 1, "loss_lam": 0.1, "align_scaling": "per_sample"}),
        ("generalized_contrastive", {"loss_lam": 5, **chen}),
        ("dcl", {"loss_tau": 0.5}),
        ("balanced_contrastive", {"loss_alpha": 4, "loss_lam": 2}),
        ("generalized_nt_xent", {"loss_alpha": 2, "loss_lam": 2}),
        ("logsumexp", {"loss_tau": 0.5}),
        ("prior_matching", {"prior": "hypersphere"}),
        ("weighted", {}),
    ):
        asked = C.PretrainConfig(loss=loss)
        made = resolve(asked, dataset)
        objective = C.section(asked.replace(**filled), C.ObjectiveConfig)
        assert C.section(made, C.ObjectiveConfig) == objective, loss
        assert resolve(made, dataset) == made, loss
