"""The step of Momentum Contrast: Algorithm 1 in NumPy, devices, gradients, what it logs."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, PartitionSpec

from hypersphere_jax import sharding
from hypersphere_jax.config import ObjectiveConfig
from hypersphere_jax.losses import l2_normalize
from hypersphere_jax.moco import queue_init
from hypersphere_jax.shuffle import shuffle
from hypersphere_jax.train_step import (
    Momentum,
    init_state,
    make_moco_step,
    make_queue_objective,
)

# Two pixels of three channels an image; views that are the image itself times a factor of the view.
N, BATCH, QUEUE, DIM, TAU, RATE, BETA, DECAY = 40, 8, 21, 4, 0.3, 0.5, 0.9, 0.8
CONTRASTIVE = ObjectiveConfig(
    contrastive_weight=1.0, contrastive_tau=TAU, align_weight=0, uniform_weight=0
)


def linear(params, stats, x, train, axis_name=None):
    """A network without batch norm."""
    z = jnp.reshape(x, (len(x), -1)) @ params["w"]
    return {"output": l2_normalize(z)}, stats


def noisy(key, image):
    """A view that is a function of its key."""
    return image.astype(jnp.float32) / 255 + jax.random.normal(key, image.shape)


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(0).integers(0, 256, (N, 1, 2, 3), dtype=np.uint8)


def start(optimizer):
    params = {"w": jax.random.normal(jax.random.key(0), (6, DIM))}
    state = init_state(params, {}, optimizer)
    queue = queue_init(jax.random.key(1), QUEUE, DIM)
    return state._replace(momentum=Momentum(params, {}, queue))


def make(objective=CONTRASTIVE, axis_name=None, **options):
    optimizer = optax.chain(optax.trace(BETA), optax.scale_by_learning_rate(RATE))
    step = make_moco_step(
        linear,
        make_queue_objective(objective),
        optimizer,
        noisy,
        axis_name=axis_name,
        decay=lambda step: DECAY,
        **options,
    )
    return step, start(optimizer)


def order(step):
    return np.random.default_rng([7, step]).permutation(N)[:BATCH]


def views_of(images, step):
    """What the step draws, from its documented rule: step, position, view."""
    key = jax.random.fold_in(jax.random.key(3), step)
    keys = [jax.random.fold_in(key, position) for position in range(BATCH)]
    return [
        np.stack(
            [
                np.asarray(noisy(jax.random.fold_in(k, view), jnp.asarray(image)), np.float64)
                for k, image in zip(keys, images[order(step)], strict=True)
            ]
        ).reshape(BATCH, -1)
        for view in (0, 1)
    ]


def unit(z):
    return z / np.linalg.norm(z, axis=1, keepdims=True)


def algorithm_1(images, state, steps):
    """MoCo's Algorithm 1 with the gradient by hand, float64; yields after each step."""
    w = np.asarray(state.params["w"], np.float64)
    w_key, velocity = w.copy(), np.zeros_like(w)
    queue = [np.asarray(row, np.float64) for row in state.momentum.queue.keys]
    ptr = 0
    for step in range(steps):
        x_q, x_k = views_of(images, step)
        z = x_q @ w
        q, k = unit(z), unit(x_k @ w_key)
        logits = np.concatenate([np.sum(q * k, 1, keepdims=True), q @ np.stack(queue).T], 1) / TAU
        weights = np.exp(logits - logits.max(1, keepdims=True))
        weights /= weights.sum(1, keepdims=True)
        loss = -np.log(weights[:, 0]).mean()
        g_q = ((weights[:, :1] - 1) * k + weights[:, 1:] @ np.stack(queue)) / TAU / BATCH
        norms = np.linalg.norm(z, axis=1, keepdims=True)
        g_z = (g_q - q * np.sum(g_q * q, 1, keepdims=True)) / norms
        velocity = BETA * velocity + x_q.T @ g_z
        w = w - RATE * velocity
        w_key = DECAY * w_key + (1 - DECAY) * w
        for row in k:
            queue[ptr] = row
            ptr = (ptr + 1) % QUEUE
        yield loss, w, w_key, np.stack(queue), ptr


def test_algorithm_1(images):
    """Step by step over two wrap-arounds of a queue that the batch does not divide."""
    step, state = make()
    step = jax.jit(step)
    labels = np.zeros(N, np.int32)
    for number, expected in enumerate(algorithm_1(images, state, steps=7)):
        state, metrics = step(state, images, labels, order(number), jax.random.key(3))
        loss, w, w_key, queue, ptr = expected
        np.testing.assert_allclose(metrics["loss"], loss, rtol=2e-5)
        np.testing.assert_allclose(state.params["w"], w, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(state.momentum.params["w"], w_key, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(state.momentum.queue.keys, queue, rtol=1e-4, atol=1e-5)
        assert int(state.momentum.queue.ptr) == ptr == (number + 1) * BATCH % QUEUE
        assert int(state.step) == number + 1
    assert 7 * BATCH > 2 * QUEUE


@pytest.mark.parametrize("devices", [2, 4, 8])
@pytest.mark.parametrize("intra_batch", [True, False])
def test_devices_change_nothing(images, devices, intra_batch):
    objective = ObjectiveConfig(
        contrastive_weight=0.5, contrastive_tau=TAU, uniform_intra_batch=intra_batch
    )
    step, alone = make(objective)
    step = jax.jit(step)
    mapped, _ = make(objective, sharding.AXIS)
    local = jax.devices()[:devices]
    mapped = sharding.pmap(mapped, local)
    labels = np.zeros(N, np.int32)
    spread, fixed, key = sharding.replicate((alone, (images, labels), jax.random.key(3)), local)
    for number in range(4):
        rows = order(number).astype(np.int32)
        alone, metrics = step(alone, images, labels, rows, jax.random.key(3))
        indices = sharding.split(rows.reshape(devices, -1), local)
        spread, found = mapped(spread, *fixed, indices, key)
        assert_close(sharding.unreplicate(found), metrics)
    assert_close(sharding.unreplicate(spread), alone)
    # The queue is the same on each device, to the bit.
    for row in np.asarray(spread.momentum.queue.keys)[1:]:
        np.testing.assert_array_equal(row, np.asarray(spread.momentum.queue.keys)[0])


@pytest.mark.parametrize("resident", [True, False])
@pytest.mark.slow
def test_shuffled_keys_come_back(images, resident, devices=4):
    """Without batch norm, where keys are made changes nothing, under `shard_map` too."""
    plain, alone = make()
    plain = jax.jit(plain)
    separate = functools.partial(shuffle, groups=4, axis_name=sharding.AXIS)
    step, state = make(axis_name=sharding.AXIS, separate=separate, resident=resident)
    whole, part = PartitionSpec(), PartitionSpec(sharding.AXIS)
    mapped = jax.jit(
        jax.shard_map(
            step,
            mesh=Mesh(np.array(jax.devices()[:devices]), (sharding.AXIS,)),
            in_specs=(whole, whole if resident else part, part, part, whole),
            out_specs=whole,
            check_vma=resident,  # with and without
        )
    )
    labels, key = np.zeros(N, np.int32), jax.random.key(3)
    for number in range(3):
        rows = order(number).astype(np.int32)
        alone, metrics = plain(alone, images, labels, rows, key)
        if resident:
            state, found = mapped(state, images, labels[:BATCH], rows, key)
        else:
            mine = np.tile(np.arange(BATCH // devices, dtype=np.int32), devices)
            state, found = mapped(state, images[rows], labels[rows], mine, key)
        assert_close(found, metrics)
    assert_close(state, alone)


def test_algorithm_1_in_pytorch(images):
    """MoCo's code, but that the queue's end may lie within a batch: gradients by autograd."""
    torch = pytest.importorskip("torch")
    step, state = make()
    step = jax.jit(step)
    encoder = [torch.nn.Linear(6, DIM, bias=False) for _ in range(2)]
    for net in encoder:
        net.weight.data = torch.tensor(np.array(state.params["w"]).T)
    query_net, key_net = encoder
    optimizer = torch.optim.SGD(query_net.parameters(), RATE, momentum=BETA)
    queue = torch.tensor(np.array(state.momentum.queue.keys)).T.clone()  # [dim, k], as there
    ptr = 0
    for number in range(7):
        x_q, x_k = (torch.tensor(x, dtype=torch.float32) for x in views_of(images, number))
        q = torch.nn.functional.normalize(query_net(x_q), dim=1)
        with torch.no_grad():
            k = torch.nn.functional.normalize(key_net(x_k), dim=1)
        positive = torch.einsum("nc,nc->n", q, k).unsqueeze(-1)
        logits = torch.cat([positive, q @ queue], dim=1) / TAU
        loss = torch.nn.functional.cross_entropy(logits, torch.zeros(BATCH, dtype=torch.long))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            key_net.weight.mul_(DECAY).add_(query_net.weight, alpha=1 - DECAY)
            queue[:, (ptr + torch.arange(BATCH)) % QUEUE] = k.T
        ptr = (ptr + BATCH) % QUEUE

        state, metrics = step(
            state, images, np.zeros(N, np.int32), order(number), jax.random.key(3)
        )
        np.testing.assert_allclose(metrics["loss"], loss.item(), rtol=2e-5)
        momentum = state.momentum
        for ours, theirs in (
            (state.params["w"], query_net.weight.detach().T),
            (momentum.params["w"], key_net.weight.detach().T),
            (momentum.queue.keys, queue.T),
        ):
            np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-4, atol=1e-5)
        assert int(momentum.queue.ptr) == ptr


def assert_close(tree, other):
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), tree, other)


def test_metrics(images):
    step, state = make(ObjectiveConfig(contrastive_weight=1.0, contrastive_tau=TAU))
    step = jax.jit(step)
    labels = np.zeros(N, np.int32)
    for number in range(3):
        queue = np.asarray(state.momentum.queue.keys)
        x_q, x_k = views_of(images, number)
        q = unit(x_q @ np.asarray(state.params["w"]))
        k = unit(x_k @ np.asarray(state.momentum.params["w"]))
        state, found = step(state, images, labels, order(number), jax.random.key(3))
        np.testing.assert_allclose(found["chance"], math.log(QUEUE + 1), rtol=1e-6)
        positive, negative = np.sum(q * k, 1).mean(), (q @ queue.T).mean()
        np.testing.assert_allclose(found["positive_similarity"], positive, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(found["negative_similarity"], negative, rtol=1e-4, atol=1e-6)
        assert found["queue_filled"] == min(1, number * BATCH / QUEUE)
        np.testing.assert_allclose(found["align"], np.sum((q - k) ** 2, 1).mean(), rtol=1e-4)
        terms = found["contrastive"] + found["align"] + found["uniform"]
        np.testing.assert_allclose(found["loss"], terms, rtol=1e-5)


def test_statistics_of_the_momentum_encoder(images):
    """Its own are those of the keys; averaged ones follow the encoder's."""

    def counting(params, stats, x, train, axis_name=None):
        outputs, _ = linear(params, stats, x, train)
        return outputs, {"mean": 0.5 * stats["mean"] + 0.5 * jnp.mean(x)}

    optimizer = optax.sgd(0.1)
    labels = np.zeros(N, np.int32)
    for own in (True, False):
        step = make_moco_step(
            counting, make_queue_objective(CONTRASTIVE), optimizer, noisy,
            axis_name=None, own_stats=own, decay=lambda step: DECAY,
        )  # fmt: skip
        params = {"w": jax.random.normal(jax.random.key(0), (6, DIM))}
        stats = {"mean": jnp.float32(2.0)}
        queue = queue_init(jax.random.key(1), QUEUE, DIM)
        state = init_state(params, stats, optimizer)
        state = state._replace(momentum=Momentum(params, {"mean": jnp.float32(4.0)}, queue))
        after, _ = jax.jit(step)(state, images, labels, order(0), jax.random.key(3))
        x_q, x_k = views_of(images, 0)
        trained = 1 + x_q.mean() / 2
        np.testing.assert_allclose(after.stats["mean"], trained, rtol=1e-5)
        expected = 2 + x_k.mean() / 2 if own else DECAY * 4 + (1 - DECAY) * trained
        np.testing.assert_allclose(after.momentum.stats["mean"], expected, rtol=1e-5)
