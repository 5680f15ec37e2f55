"""The other papers' losses as objectives: which function of which layers, and what goes along."""

import dataclasses

import jax
import numpy as np
import optax
import pytest
from run_cases import timeless
from test_together import OBJECTIVES, assert_close_run, config

import hypersphere_jax as hj
from hypersphere_jax import assembly, data, finetune, pairwise, runs, training
from hypersphere_jax.config import (
    EvaluateConfig,
    FinetuneConfig,
    MocoConfig,
    ModelConfig,
    ObjectiveConfig,
    PretrainConfig,
    UserError,
    from_dict,
    to_dict,
)
from hypersphere_jax.train_step import init_state, make_objective, make_step

KEY = jax.random.key(5)
# Settings, and the function with these of two views' features, unit ones unless it says "raw".
CASES = {
    "nt_xent": ({"loss_tau": 0.3}, lambda x, y: hj.nt_xent_loss(x, y, 0.3)),
    "nt_xent raw dot": (
        {"loss_tau": 0.7, "similarity": "dot"},
        lambda x, y: hj.nt_xent_loss(x, y, 0.7, "dot"),
    ),
    "nt_xent raw euclidean": (
        {"similarity": "neg_euclidean"},
        lambda x, y: hj.nt_xent_loss(x, y, similarity="neg_euclidean"),
    ),
    "decoupled_nt_xent": ({}, hj.decoupled_nt_xent_loss),
    "decoupled_nt_xent per dimension": (
        {"loss_tau": 0.4, "loss_lam": 0.02, "align_scaling": "per_dimension"},
        lambda x, y: hj.decoupled_nt_xent_loss(x, y, 0.4, 0.02, scaling="per_dimension"),
    ),
    "generalized_contrastive": ({}, lambda x, y: hj.generalized_contrastive_loss(KEY, x, y)),
    "generalized_contrastive raw normal": (
        {"loss_lam": 0.5, "prior": "normal"},
        lambda x, y: hj.generalized_contrastive_loss(KEY, x, y, "normal", 0.5),
    ),
    "generalized_contrastive raw hypercube": (
        {"prior": "hypercube", "align_scaling": "per_sample"},
        lambda x, y: hj.generalized_contrastive_loss(KEY, x, y, "hypercube", scaling="per_sample"),
    ),
    "dcl": ({"loss_tau": 0.2}, lambda x, y: hj.dcl_loss(x, y, 0.2)),
    "balanced_contrastive": (
        {"loss_alpha": 3.0, "loss_lam": 1.5},
        lambda x, y: hj.balanced_contrastive_loss(x, y, 3.0, 1.5),
    ),
    "generalized_nt_xent": (
        {"loss_lam": 0.0},
        lambda x, y: hj.generalized_nt_xent_loss(x, y, lam=0.0),
    ),
    "logsumexp": (
        {"loss_tau": 0.2},
        lambda x, y: (hj.logsumexp_loss(x, 0.2) + hj.logsumexp_loss(y, 0.2)) / 2,
    ),
    "prior_matching": (
        {},
        lambda x, y: (hj.prior_matching_loss(KEY, x) + hj.prior_matching_loss(KEY, y)) / 2,
    ),
    "prior_matching raw normal": (
        {"prior": "normal"},
        lambda x, y: sum(hj.prior_matching_loss(KEY, z, "normal") for z in (x, y)) / 2,
    ),
}


def objective_of(case):
    return ObjectiveConfig(loss=case.split()[0], **CASES[case][0])


@pytest.fixture(scope="module")
def views():
    """Layers of two views of 6 images, 4 dimensions and 3 classes."""
    rng = np.random.default_rng(3)

    def view():
        raw = (1.5 * rng.standard_normal((6, 4))).astype(np.float32)
        unit = raw / np.linalg.norm(raw, axis=1, keepdims=True)
        logits = rng.standard_normal((6, 3)).astype(np.float32)
        return {"unnormalized": raw, "output": unit, "logits": logits}

    return view(), view()


LABELS = np.arange(6) % 3


def alignment(case, x, y):
    squares = np.sum((x - y) ** 2, axis=1).mean() / 2
    if "per dimension" in case or ("generalized_contrastive" in case and "cube" not in case):
        return squares / x.shape[1]
    return squares if "cube" in case else -np.sum(x * y, axis=1).mean()


@pytest.mark.parametrize("case", CASES)
def test_objective_is_the_function_of_the_views(case, views):
    chosen, asked = "unnormalized" if "raw" in case else "output", objective_of(case)
    x, y = (view[chosen] for view in views)
    loss, metrics = make_objective(asked)(*views, LABELS, None, KEY)
    np.testing.assert_allclose(loss, CASES[case][1](x, y), rtol=1e-6)
    unit = [view["output"] for view in views]
    np.testing.assert_allclose(metrics["align"], hj.align_loss(*unit), rtol=1e-6)
    uniform = sum(map(hj.uniform_loss, unit)) / 2
    np.testing.assert_allclose(metrics["uniform"], uniform, rtol=1e-6)
    lam = pairwise.resolved(asked).loss_lam
    assert ("loss_alignment" in metrics) == (lam is not None)
    if lam is not None:
        np.testing.assert_allclose(metrics["loss_alignment"], alignment(case, x, y), rtol=1e-5)
        total = metrics["loss_alignment"] + lam * metrics["loss_distribution"]
        np.testing.assert_allclose(total, loss, rtol=1e-5)
    if case == "generalized_nt_xent":  # at lam = 0 the other term is there all the same
        term = hj.generalized_nt_xent_loss(x, y, lam=1.0) - loss
        np.testing.assert_allclose(metrics["loss_distribution"], term, rtol=1e-5)


def test_the_supervised_term_is_added(views):
    asked = ObjectiveConfig(loss="dcl", supervised_weight=0.3, align_alpha=1.0, uniform_t=3.0)
    loss, metrics = make_objective(asked)(*views, LABELS, None)
    x, y = (view["output"] for view in views)
    entropies = [
        optax.softmax_cross_entropy_with_integer_labels(view["logits"], LABELS) for view in views
    ]
    expected = hj.dcl_loss(x, y) + 0.3 * np.mean(entropies)
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    # The logged metrics keep the options that shape them.
    np.testing.assert_allclose(metrics["align"], np.linalg.norm(x - y, axis=1).mean(), rtol=1e-5)
    uniform = (hj.uniform_loss(x, 3.0) + hj.uniform_loss(y, 3.0)) / 2
    np.testing.assert_allclose(metrics["uniform"], uniform, rtol=1e-6)


@pytest.mark.parametrize("case", ["generalized_contrastive", "prior_matching", "dcl"])
def test_factor_of_the_whole_loss(case, views):
    """Of value and gradient; not of what is logged, nor of the supervised term."""
    base = dataclasses.replace(objective_of(case), supervised_weight=0.3)

    @jax.jit
    def of(x, factor):
        objective = make_objective(base, {"loss_factor": factor})
        return objective(views[0] | {"output": x}, views[1], LABELS, None, KEY)

    step = jax.value_and_grad(of, has_aux=True)
    (loss, metrics), slope = step(views[0]["output"], 1.0)
    (scaled, same), steeper = step(views[0]["output"], 1000.0)
    own = loss - 0.3 * metrics["supervised"]
    np.testing.assert_allclose(scaled - 0.3 * metrics["supervised"], 1000 * own, rtol=1e-5)
    np.testing.assert_allclose(steeper, 1000 * slope, rtol=1e-5, atol=1e-4)
    assert jax.tree.map(float, same) == jax.tree.map(float, metrics)
    constant = make_objective(dataclasses.replace(base, loss_factor=1000.0))
    np.testing.assert_allclose(constant(*views, LABELS, None, KEY)[0], scaled, rtol=1e-6)


def test_the_other_view_plays_no_part(views):
    """In losses of one view: its features change no gradient of the first view's."""
    for case in ("logsumexp", "prior_matching"):
        objective = make_objective(objective_of(case))

        @jax.jit
        def slope(x, y, objective=objective):
            return jax.grad(
                lambda x: objective({"output": x}, {"output": y}, LABELS, None, KEY)[0]
            )(x)

        x, y = (view["output"] for view in views)
        np.testing.assert_allclose(slope(x, y), slope(x, y[::-1] * [1, -1, 1, -1]), rtol=1e-6)


@pytest.mark.parametrize(
    ("case", "field", "values"),
    [
        ("nt_xent raw euclidean", "loss_tau", (None, 0.9)),
        ("generalized_contrastive", "loss_lam", (None, 0.9)),
        ("generalized_contrastive", "loss_factor", (1.0, 1000.0)),
        ("logsumexp", "loss_tau", (None, 0.9)),
        ("prior_matching raw normal", "loss_factor", (1.0, 0.5)),
    ],
)
def test_numbers_as_arguments(case, field, values, views):
    """Of encoders that train together: each as if they were constants."""
    base = objective_of(case)
    asked = [dataclasses.replace(base, **{field: value}) for value in values]
    dataset = data.load(PretrainConfig().data)
    configs = [PretrainConfig(objective=one, seed=seed) for seed, one in enumerate(asked)]
    assert len(set(map(assembly.structure, configs))) == 1
    numbers = [assembly.numbers_of(assembly.resolve(one, dataset))["objective"] for one in configs]
    stacked = jax.tree.map(lambda *x: np.stack(x), *numbers)

    @jax.jit
    @jax.vmap
    def together(numbers):
        return make_objective(base, numbers)(*views, LABELS, None, KEY)

    found = together(stacked)
    for i, one in enumerate(asked):
        loss, metrics = make_objective(one)(*views, LABELS, None, KEY)
        np.testing.assert_allclose(found[0][i], loss, rtol=1e-5)
        for name, value in metrics.items():
            np.testing.assert_allclose(found[1][name][i], value, rtol=1e-5, err_msg=name)
    assert abs(found[0][0] - found[0][1]) > 1e-3


def test_other_losses_are_other_structures():
    asked = [
        ObjectiveConfig(),
        *map(objective_of, ("nt_xent", "nt_xent raw dot", "decoupled_nt_xent", "dcl")),
    ]
    assert len({assembly.structure(PretrainConfig(objective=one)) for one in asked}) == 5


@pytest.mark.parametrize(
    ("loss", "filled"),
    [
        ("nt_xent", {"loss_tau": 0.5, "similarity": "cosine"}),
        ("decoupled_nt_xent", {"loss_tau": 1, "loss_lam": 0.1, "align_scaling": "per_sample"}),
        (
            "generalized_contrastive",
            {"loss_lam": 5, "prior": "hypersphere", "align_scaling": "per_dimension"},
        ),
        ("dcl", {"loss_tau": 0.5}),
        ("balanced_contrastive", {"loss_alpha": 4, "loss_lam": 2}),
        ("generalized_nt_xent", {"loss_alpha": 2, "loss_lam": 2}),
        ("logsumexp", {"loss_tau": 0.5}),
        ("prior_matching", {"prior": "hypersphere"}),
        ("weighted", {}),
    ],
)
def test_defaults_are_filled_in(loss, filled):
    """Those that the help names, so that config.json has them."""
    dataset = data.load(PretrainConfig().data)
    asked = PretrainConfig(objective=ObjectiveConfig(loss=loss))
    made = assembly.resolve(asked, dataset)
    assert made.objective == dataclasses.replace(asked.objective, **filled)
    assert assembly.resolve(made, dataset) == made


def test_config_of_an_earlier_version():
    saved = to_dict(ObjectiveConfig(contrastive_weight=0.5))
    settings = ("loss_tau", "loss_alpha", "loss_lam", "similarity", "prior", "align_scaling")
    new = ("loss", "loss_factor", *settings)
    old = {name: value for name, value in saved.items() if name not in new}
    assert from_dict(ObjectiveConfig, old) == ObjectiveConfig(contrastive_weight=0.5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss_tau": 0.5}, "--loss-tau is for --loss nt_xent or .* or logsumexp, not weighted"),
        ({"prior": "normal"}, "--prior .* generalized_contrastive or prior_matching, not weighted"),
        ({"loss_factor": 1000.0}, "--loss-factor is for the other losses: `weighted` has a weight"),
        ({"loss": "dcl", "loss_factor": 0.0}, "--loss-factor 0.0: must be finite and positive"),
        ({"loss": "dcl", "loss_factor": float("inf")}, "--loss-factor inf: must be finite"),
        ({"loss": "logsumexp", "loss_lam": 1.0}, "--loss-lam is for .*, not logsumexp"),
        ({"loss": "prior_matching", "loss_tau": 1.0}, "--loss-tau is for .*, not prior_matching"),
        ({"loss": "dcl", "loss_alpha": 2.0}, "--loss-alpha is for .*, not dcl"),
        ({"loss": "dcl", "similarity": "cosine"}, "--similarity is for --loss nt_xent, not dcl"),
        ({"loss": "nt_xent", "align_scaling": "per_sample"}, "--align-scaling .* not nt_xent"),
        ({"loss": "nt_xent", "align_weight": 0.5}, "--align-weight is for --loss weighted, not"),
        ({"loss": "dcl", "uniform_weight": 0.0}, "--uniform-weight is for --loss weighted"),
        ({"loss": "dcl", "contrastive_weight": 1.0}, "--contrastive-weight is for --loss weighted"),
        ({"loss": "dcl", "contrastive_tau": 0.1}, "--contrastive-tau is for --loss weighted"),
        ({"loss": "dcl", "loss_tau": 0.0}, "--loss-tau 0.0: must be finite and positive"),
        ({"loss": "balanced_contrastive", "loss_alpha": -1.0}, "--loss-alpha -1.0: must be"),
        ({"loss": "balanced_contrastive", "loss_lam": -1.0}, "--loss-lam -1.0: must be .* >= 0"),
        ({"loss": "balanced_contrastive", "loss_lam": float("nan")}, "--loss-lam nan: must be"),
    ],
)
def test_settings_that_do_not_fit(options, message):
    with pytest.raises(UserError, match=message):
        ObjectiveConfig(**options)


def test_neither_queue_nor_text():
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


@pytest.fixture(scope="module")
def small():
    """A step on 16 random images without augmentation, of a linear map's features and a prior."""

    def apply(params, stats, x, train, axis_name):
        raw = x.reshape(len(x), -1) @ params["kernel"]
        return {"unnormalized": raw, "output": hj.l2_normalize(raw)}, stats

    params = {"kernel": 0.3 * jax.random.normal(jax.random.key(1), (64, 3))}
    optimizer = optax.sgd(0.1)
    objective = make_objective(objective_of("generalized_contrastive raw normal"))

    def augment(key, image):
        return image / 255.0 - 0.5

    def step(axis_name):
        return make_step(apply, objective, optimizer, augment, axis_name=axis_name)

    images = np.random.default_rng(0).integers(0, 256, (16, 8, 8, 1), dtype=np.uint8)
    state = init_state(params, {}, optimizer)
    return step, jax.jit(step(None)), state, images, np.zeros(16, np.int32)


def test_what_is_drawn_depends_on_seed_and_step(small):
    _, step, state, *data = small
    given = (*data, np.arange(16))
    _, first = step(state, *given, KEY)
    _, again = step(state, *given, KEY)
    _, later = step(state._replace(step=state.step + 1), *given, KEY)
    _, other = step(state, *given, jax.random.key(6))
    assert first["loss_distribution"] == again["loss_distribution"]
    assert abs(first["loss_distribution"] - later["loss_distribution"]) > 1e-4
    assert abs(first["loss_distribution"] - other["loss_distribution"]) > 1e-4
    assert first["align"] == later["align"] == other["align"]


def test_the_number_of_devices_changes_no_number(small):
    step, alone, state, *data = small
    mapped = jax.pmap(
        step("data"),
        axis_name="data",
        in_axes=(None, None, None, 0, None),
        devices=jax.devices()[:4],
    )
    found = mapped(state, *data, np.arange(16).reshape(4, 4), KEY)
    expected = alone(state, *data, np.arange(16), KEY)
    for x, y in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        for device in range(4):
            np.testing.assert_allclose(x[device], y, rtol=1e-4, atol=1e-5)
    moved = jax.tree.map(lambda x, y: np.abs(x - y).max(), expected[0].params, state.params)
    assert all(change > 1e-6 for change in jax.tree.leaves(moved))


@pytest.mark.slow
def test_together_as_alone(tmp_path):
    asked = {"a": {}, "b": {"loss_lam": 1.0}}
    configs = {
        name: config(
            tmp_path,
            name,
            name,
            objective=ObjectiveConfig(loss="generalized_contrastive", prior="normal", **settings),
            evaluate=EvaluateConfig(),
        )
        for name, settings in asked.items()
    }
    assert set(configs) == set(OBJECTIVES)
    training.train_together(list(configs.values()))
    for name, one in configs.items():
        alone = training.train(dataclasses.replace(one, runs_dir=str(tmp_path / "alone")))
        assert_close_run(tmp_path / name, alone)
        made = runs.read_config(alone).objective
        assert (made.loss_lam, made.prior) == ({"a": 5, "b": 1}[name], "normal")
        assert {"loss_alignment", "loss_distribution"} <= timeless(alone)[-1].keys()
