"""The benchmarks: forms of losses and views agree, their arithmetic is right, options arrive."""

import importlib.util
import inspect
import sys
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from augment_cases import keys, random_image
from flax import nnx
from scipy import stats

import benchmarks
from benchmarks import (
    augment,
    convolution,
    data,
    knn,
    layers,
    loop,
    losses,
    options,
    probe,
    roofline,
    scaling,
    start,
    text,
    train_step,
    vmapped,
)
from benchmarks.augment_pillow import pillow_views
from benchmarks.loss_figure import loss_scaling
from benchmarks.loss_forms import DENSE, LOSSES, OURS, TORCH, make_form, unit_vectors
from hypersphere_jax.augment import RECIPES, Recipe, make_augment
from hypersphere_jax.configs import ModelConfig
from hypersphere_jax.models import small_alexnet
from hypersphere_jax.models.cpu import image_blocks
from hypersphere_jax.models.norm import BatchNorm
from hypersphere_jax.models.ops import convolution as convolution_of_models

FORMS = [DENSE] + ([TORCH] if importlib.util.find_spec("torch") else [])

# What carries out each part, in the order of their names.
FUNCTIONS = (
    *(start.start, train_step.step, layers.layers, loop.loop, text.text),
    *(
        vmapped.vmapped,
        convolution.convolutions,
        augment.augment,
        data.pipelines,
        losses.scaling,
        knn.neighbours,
    ),
    *(scaling.scaling, probe.probe),
)


def test_every_option_arrives(monkeypatch):
    for name, function in zip(benchmarks.PARTS, FUNCTIONS, strict=True):
        called, part = mock.create_autospec(function), getattr(options, name)
        monkeypatch.setattr(sys.modules[function.__module__], function.__name__, called)
        values = {option: object() for option in inspect.signature(part).parameters}
        part(**values)
        called.assert_called_once_with(**values)
    assert tuple(LOSSES) == options.LOSSES


@pytest.mark.slow
def test_layers_are_those_of_the_step(monkeypatch):
    """With the arithmetic of each, and no gradient of images; views pass at once or in turn."""
    config = ModelConfig("small_cnn", dim=16, image_size=8, in_channels=1, width=0.5)
    images = train_step.images_of(config, 4)
    begin = train_step.stepper(config, images, 4, "none")
    with layers.recorded() as found:
        begin.lower()
    products = {part.name: part for part in found if part.flops}
    views = products["dense, 256 to 16, bias"].inputs[0][0]
    assert {name: part.flops / views for name, part in products.items()} == {
        "conv 3x3, 1 to 16, side 8": 2 * 8 * 8 * 9 * 16,
        "conv 3x3 /2, 16 to 32, side 8": 2 * 4 * 4 * 9 * 16 * 32,
        "conv 3x3 /2, 32 to 64, side 4": 2 * 2 * 2 * 9 * 32 * 64,
        "dense, 256 to 16, bias": 2 * 256 * 16,
    }
    assert [part.first for part in products.values()] == [1, 0, 0, 0]
    assert sum("batch norm" in part.name for part in found) == 3 * 8 / views
    # XLA's count leaves out products with padding, and has each loop over blocks of images once.
    monkeypatch.setattr(image_blocks, "BLOCK_BYTES", 1)
    count = train_step.flops_of(config, images, 4, "none")
    assert 0.7 < count / sum(3 * part.flops for part in found) < 1


@pytest.mark.slow
def test_parts_compute_what_the_layers_do(rng):
    """Each on what the step would give it; the limit of one by hand."""
    x = jnp.asarray(rng.standard_normal((4, 6, 6, 3)), jnp.float32)
    stream = nnx.Rngs(0)
    options = {"strides": 2, "padding": 1, "use_bias": False, "rngs": stream}
    conv = nnx.Conv(3, 5, (3, 3), conv_general_dilated=convolution_of_models, **options)
    dense, norm = nnx.Linear(3, 2, rngs=stream), BatchNorm(3)
    with layers.recorded() as found:
        outputs = conv(x), dense(x[:, 0, 0]), norm(x, True, relu=True), small_alexnet.max_pool(x)
    parameters = (conv.kernel,), (dense.kernel, dense.bias), (norm.scale, norm.bias), ()
    for part, output, of in zip(found, outputs, parameters, strict=True):
        given = x[:, 0, 0] if len(part.inputs[0]) == 2 else x
        np.testing.assert_allclose(part.function(given, *(p[...] for p in of)), output, atol=1e-5)
    product = found[1]._replace(first=0)  # 4 x 3 by 3 x 2, with a bias
    peaks = roofline.Peaks({"float32": 1.0}, 1e12)
    assert product.limit(peaks) == pytest.approx(3 * 2 * 4 * 3 * 2)
    peaks = roofline.Peaks({"float32": 1e12}, 4.0)  # a number a second
    assert product.limit(peaks) == pytest.approx(2 * (4 * 3 + 3 * 2 + 2) + 2 * 4 * 2)
    assert product.forms.keys() == {"value", "all"} and not any(f() for f in product.forms.values())


@pytest.mark.slow
def test_forms_of_losses_agree():
    for name, loss in LOSSES.items():
        arrays = unit_vectors(loss.inputs, 24, 6)
        value, gradients = make_form(loss, OURS, arrays)()
        for form in FORMS:
            other, others = make_form(loss, form, arrays)()
            np.testing.assert_allclose(float(other), float(value), rtol=1e-5, err_msg=name)
            assert len(others) == len(gradients) == loss.learned
            for one, two in zip(gradients, others, strict=True):
                np.testing.assert_allclose(np.asarray(two), one, atol=1e-6, err_msg=name)


def test_summary_is_the_arithmetic_of_the_rounds():
    """Of ours, which is slow, one round."""
    seconds = {OURS: [2.0], DENSE: [4.0, 100.0, 100.0], losses.PRODUCT: [0.5, 1.0, 1.0]}
    seconds = {form: np.array(rounds) for form, rounds in seconds.items()}
    given = (1000, 5, seconds, 1e7)  # a whole product of this size is 1e7 flops
    ours, dense = (losses.summary(LOSSES["contrastive"], form, *given) for form in (OURS, DENSE))
    assert ours["ms"] == 2000 and ours["limit_ms"] == dense["limit_ms"] == 4000
    assert (ours["ratio"], dense["ratio"]) == (1, 2)  # of the round that both had
    assert (ours["share"], dense["share"]) == pytest.approx((4 * 0.5 / 2, 3 * 1 / 100))
    assert LOSSES["sliced_wasserstein"].flops(OURS, 100, 5) == 3 * 2 * 100 * 5 * 5


def described(views):
    """Of each view: means of the channels, contrast, edges, balance of left and right, range."""
    views = np.asarray(views)
    every, edges = (1, 2, 3), np.abs(np.diff(views, axis=2))
    sides = views[:, :, :8].mean(every) - views[:, :, 8:].mean(every)
    parts = views.std(every), edges.mean(every), sides, np.ptp(views, axis=-1).mean((1, 2))
    return [*views.mean(axis=(1, 2)).T, *parts, views.max(every)]


@pytest.mark.slow
def test_views_have_the_law_of_pillows():
    image, n, steps = random_image(20, 24), 700, RECIPES["balanced_cutout"].train
    ours = jax.jit(jax.vmap(make_augment("balanced_cutout", 16), (0, None)))(keys(n), image)
    pillow = pillow_views(np.random.default_rng(0), steps, 16, np.stack([image] * n))
    for number, pair in enumerate(zip(described(ours), described(pillow), strict=True)):
        assert stats.ks_2samp(*pair).pvalue > 0.001, number


def test_numbers_are_of_one_view(monkeypatch):
    """4 images of two views; ours takes 1 s, without the flip 0.25, Pillow 8."""
    seconds = {augment.OURS: 1.0, "random_horizontal_flip": 0.25, augment.PILLOWS: 8.0}

    def rounds_of(calls, rounds, clock):
        assert {np.shape(calls[form]()) for form in list(seconds)[::2]} == {(2, 4, 8, 8, 3)}
        return {form: np.full(rounds, seconds[form]) for form in calls}

    monkeypatch.setattr(augment, "rounds_of", rounds_of)
    steps = ("rgb", {}), ("random_horizontal_flip", {"p": 0.5})
    record = augment.measure(Recipe(steps, ()), 8, images=4, rounds=3, epoch=9)
    assert record["us"] == {augment.OURS: 1e6 / 8, augment.PILLOWS: 1e6}
    assert record["ratio"] == 8 and record["share"] == {"random_horizontal_flip": 0.75}


def test_costs_of_losses_have_a_line_per_form(tmp_path):
    records = [{"form": "ours", "n": n, "ms": n / 100, "limit_ms": 0.1} for n in (64, 128)]
    records.append({"form": "dense", "n": 64, "ms": 5.0, "peak_mb": 3.0})
    figure = loss_scaling("t", records, tmp_path / "a.png")
    ours, dense, limit = figure.axes[0].lines
    assert ours.get_xydata().tolist() == [[64, 0.64], [128, 1.28]]
    assert dense.get_xydata().tolist() == [[64, 5.0]] and list(limit.get_ydata()) == [0.1, 0.1]
    assert (tmp_path / "a.png").is_file()
