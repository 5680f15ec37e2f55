"""The other papers' losses as objectives: which function of which layers, and what goes along."""

import dataclasses
import functools
import math

import jax
import numpy as np
import pytest

import hypersphere_jax as hj
from hypersphere_jax import assembly, data, finetune, pairwise, runs
from hypersphere_jax.config import (
    FinetuneConfig,
    MocoConfig,
    ModelConfig,
    ObjectiveConfig,
    PretrainConfig,
    UserError,
    from_dict,
    to_dict,
)
from hypersphere_jax.train_step import make_objective

KEY = jax.random.key(5)


# A loss and what it is given by its function's names; "raw": features that are not normalized.
CASES = {
    "nt_xent": {"tau": 0.3},
    "nt_xent raw dot": {"tau": 0.7, "similarity": "dot"},
    "nt_xent raw euclidean": {"similarity": "neg_euclidean"},
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
LABELS = np.arange(6) % 3


def flags(options):
    """By the config's names."""
    return {FLAGS.get(name, name): value for name, value in options.items()}


def objective_of(case):
    return ObjectiveConfig(loss=case.split()[0], **flags(CASES[case]))


def function_of(case, more=()):
    """The case's loss of both views; `more` in place of its options."""
    name, options = case.split()[0], CASES[case] | dict(more)
    loss = functools.partial(getattr(hj, f"{name}_loss"), **options)
    if name in ("generalized_contrastive", "prior_matching"):
        loss = functools.partial(loss, KEY)
    if name in ("logsumexp", "prior_matching"):
        return sum(map(loss, layers(case))) / 2
    return loss(*layers(case))


def view(seed):
    """Layers of 6 images, 4 dimensions and 3 classes."""
    rng = np.random.default_rng(seed)
    raw = (1.5 * rng.standard_normal((6, 4))).astype(np.float32)
    logits = rng.standard_normal((6, 3)).astype(np.float32)
    output = raw / np.linalg.norm(raw, axis=1, keepdims=True)
    return {"unnormalized": raw, "output": output, "logits": logits}


VIEWS = view(3), view(4)


def layers(case):
    return [view["unnormalized" if "raw" in case else "output"] for view in VIEWS]


@pytest.fixture(scope="module")
def found():
    """Loss and metrics of each case."""

    @jax.jit
    def all_cases(views):
        return {
            case: make_objective(objective_of(case))(*views, LABELS, None, KEY) for case in CASES
        }

    return all_cases(VIEWS)


def test_objective_is_the_function_of_the_views(found):
    expected = jax.jit(lambda: {case: function_of(case) for case in CASES})()
    x, y = (view["output"] for view in VIEWS)
    align, uniform = hj.align_loss(x, y), (hj.uniform_loss(x) + hj.uniform_loss(y)) / 2
    for case, (loss, metrics) in found.items():
        close = functools.partial(np.testing.assert_allclose, rtol=1e-5, err_msg=case)
        close(loss, expected[case])
        close([metrics["align"], metrics["uniform"]], [align, uniform])


def alignment(case, x, y):
    squares = np.sum((x - y) ** 2, axis=1).mean() / 2
    if "per dimension" in case or ("generalized_contrastive" in case and "cube" not in case):
        return squares / x.shape[1]
    return squares if "cube" in case else -np.sum(x * y, axis=1).mean()


def test_terms_are_logged(found):
    for case, (loss, metrics) in found.items():
        lam = pairwise.resolved(objective_of(case)).loss_lam
        assert ("loss_alignment" in metrics) == (lam is not None), case
        if lam is not None:
            expected = alignment(case, *layers(case))
            np.testing.assert_allclose(metrics["loss_alignment"], expected, rtol=1e-5, err_msg=case)
            total = metrics["loss_alignment"] + lam * metrics["loss_distribution"]
            np.testing.assert_allclose(total, loss, rtol=1e-5, err_msg=case)
    # At lam = 0 the other term is there all the same.
    loss, metrics = found["generalized_nt_xent"]
    term = hj.generalized_nt_xent_loss(*layers(""), lam=1.0) - loss
    np.testing.assert_allclose(metrics["loss_distribution"], term, rtol=1e-5)


def test_devices_have_the_loss_of_one(found):
    """The same loss on each, of all devices' features and of the same draws."""
    cases = ("nt_xent", "generalized_contrastive raw normal", "prior_matching", "dcl")

    def part(*views):
        made = {case: make_objective(objective_of(case)) for case in cases}
        return {case: made[case](*views, LABELS[:3], "data", KEY) for case in cases}

    halves = jax.tree.map(lambda layer: layer.reshape(2, 3, -1), VIEWS)
    mapped = jax.pmap(part, axis_name="data", devices=jax.devices()[:2])(*halves)
    for case in cases:
        for name, value in {"loss": found[case][0], **found[case][1]}.items():
            both = mapped[case][0] if name == "loss" else mapped[case][1][name]
            np.testing.assert_allclose(both, [value] * 2, rtol=1e-4, err_msg=f"{case} {name}")


def test_numbers_as_arguments():
    """Of encoders that train together; the factor is not of the terms, nor of the labels' loss."""
    cases = {
        "decoupled_nt_xent": {"tau": 0.9, "lam": 0.3},
        "balanced_contrastive": {"alpha": 2.2, "lam": 0.7},
        "prior_matching raw normal": {},
        "dcl": {"tau": 0.4},
    }
    numbers = {"loss_factor": 1e3, "supervised_weight": 0.7, "align_alpha": 1.0, "uniform_t": 3.0}
    dataset, bases, asked = data.load(PretrainConfig().data), {}, {}
    for case, own in cases.items():
        bases[case] = dataclasses.replace(objective_of(case), supervised_weight=0.3)
        both = bases[case], dataclasses.replace(bases[case], **flags(own), **numbers)
        made = [PretrainConfig(objective=one, seed=seed) for seed, one in enumerate(both)]
        assert len(set(map(assembly.structure, made))) == 1, case
        held = [assembly.numbers_of(assembly.resolve(one, dataset))["objective"] for one in made]
        asked[case] = jax.tree.map(lambda *x: np.stack(x), *held)

    @jax.jit
    def together(asked):
        def one(case, numbers):
            return make_objective(bases[case], numbers)(*VIEWS, LABELS, None, KEY)

        return {case: jax.vmap(functools.partial(one, case))(asked[case]) for case in cases}

    logits = np.float64([view["logits"] for view in VIEWS])
    entropy = np.log(np.exp(logits).sum(2)).mean() - logits[:, np.arange(6), LABELS].mean()
    x, y = layers("")
    align = [np.sum((x - y) ** 2, 1).mean(), np.linalg.norm(x - y, axis=1).mean()]
    uniform = [(hj.uniform_loss(x, t) + hj.uniform_loss(y, t)) / 2 for t in (2.0, 3.0)]
    for case, (loss, metrics) in together(asked).items():
        close = functools.partial(np.testing.assert_allclose, rtol=1e-5, err_msg=case)
        first, other = function_of(case), function_of(case, cases[case])
        close(loss, [first + 0.3 * entropy, 1000 * other + 0.7 * entropy])
        close(metrics["supervised"], [entropy] * 2)
        close([metrics["align"], metrics["uniform"]], [align, uniform])
        if "loss_alignment" in metrics:
            close(metrics["loss_alignment"], [alignment(case, x, y)] * 2)
            lam = np.array([pairwise.resolved(bases[case]).loss_lam, cases[case]["lam"]])
            total = metrics["loss_alignment"] + lam * metrics["loss_distribution"]
            close(total, [first, other])


def test_other_losses_and_terms_are_other_structures():
    cases = ("nt_xent", "nt_xent raw dot", "decoupled_nt_xent", "dcl")
    asked = [ObjectiveConfig(), ObjectiveConfig(align_weight=0), *map(objective_of, cases)]
    assert len({assembly.structure(PretrainConfig(objective=one)) for one in asked}) == 6


def test_defaults_are_filled_in():
    """Those that the help names, so that config.json has them; what is given stays."""
    chen = {"prior": "hypersphere", "align_scaling": "per_dimension"}
    dataset = data.load(PretrainConfig().data)
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
        asked = PretrainConfig(objective=ObjectiveConfig(loss=loss))
        made = assembly.resolve(asked, dataset)
        assert made.objective == dataclasses.replace(asked.objective, **filled), loss
        assert assembly.resolve(made, dataset) == made, loss
        assert loss == "weighted" or flags(pairwise.settings(asked.objective)) == filled
    # The config of a run that knew none of these.
    saved = to_dict(ObjectiveConfig(contrastive_weight=0.5))
    new = ("loss", "loss_factor", "similarity", "prior", *FLAGS.values())
    old = {name: value for name, value in saved.items() if name not in new}
    assert from_dict(ObjectiveConfig, old) == ObjectiveConfig(contrastive_weight=0.5)


# Which settings a loss takes, and values that each could have.
TAKES = {
    "weighted": "contrastive_weight contrastive_tau align_weight uniform_weight",
    "nt_xent": "loss_tau similarity loss_factor",
    "decoupled_nt_xent": "loss_tau loss_lam align_scaling loss_factor",
    "generalized_contrastive": "loss_lam prior align_scaling loss_factor",
    "dcl": "loss_tau loss_factor",
    "balanced_contrastive": "loss_alpha loss_lam loss_factor",
    "generalized_nt_xent": "loss_alpha loss_lam loss_factor",
    "logsumexp": "loss_tau loss_factor",
    "prior_matching": "prior loss_factor",
}
VALUES = {"similarity": "dot", "prior": "normal", "align_scaling": "per_sample"}


def test_settings_that_do_not_fit():
    known = {flag for taken in TAKES.values() for flag in taken.split()}
    for loss, taken in TAKES.items():
        for flag in known:
            values, name = {"loss": loss, flag: VALUES.get(flag, 0.25)}, flag.replace("_", "-")
            if flag in taken.split():
                assert getattr(ObjectiveConfig(**values), flag) == values[flag]
            else:
                with pytest.raises(UserError, match=f"--{name} is for"):
                    ObjectiveConfig(**values)
    for flag, value in (("alpha", -1.0), ("lam", -1.0), ("lam", math.nan), ("factor", math.inf)):
        with pytest.raises(UserError, match=f"--loss-{flag} {value}: must be"):
            ObjectiveConfig(loss="balanced_contrastive", **{f"loss_{flag}": value})
    asked = ObjectiveConfig(loss="nt_xent")
    for parts in ({"moco": MocoConfig(64)}, {"model": ModelConfig("sentence_gru")}):
        PretrainConfig(**parts)
        with pytest.raises(UserError, match=r"--loss nt_xent is of two views .* --queue-size nor"):
            PretrainConfig(objective=asked, **parts)


def test_finetuning_leaves_the_loss_behind(tmp_path):
    asked = ObjectiveConfig(loss="balanced_contrastive", loss_lam=3.0, uniform_t=3.0)
    record = {"config": to_dict(PretrainConfig(objective=asked)), "data_digest": "", "sessions": []}
    record["config"]["data"]["recipe"] = "digits"
    runs.write_json(tmp_path / "config.json", record)
    base, _ = finetune._base(FinetuneConfig(str(tmp_path)))
    assert base.objective == ObjectiveConfig(
        align_weight=0, uniform_weight=0, supervised_weight=1, uniform_t=3.0
    )
