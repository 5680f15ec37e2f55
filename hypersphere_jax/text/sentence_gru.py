"""Quick-Thought's two sentence encoders: bidirectional GRUs with separate word embeddings.

Both encoders and both directions are computed as one recurrence, since they read the same rows.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from hypersphere_jax.configs import ModelConfig
from hypersphere_jax.losses import l2_normalize
from hypersphere_jax.text.packing import END, Packed

GROUPS = (2, 2)  # encoders (f and g), directions (forward and backward)
LONGEST = 63.0  # words, for the initialization "chrono"
EMBEDDING_RANGE = 0.1  # initial word embeddings are in [-0.1, 0.1], as in Quick-Thought's code


class SentenceGRU(nnx.Module):
    """Sentence encoders f and g: word embedding, bidirectional GRU, its two final states.

    Inputs are `Packed` sentences, or token ids `[k, t]` with one sentence per row. Layers:
    "f" and "g" `[k, dim]`, normalized in evaluation, and in training if `unit_norm`; "output"
    `[k, 2 dim]`, both normalized and concatenated; "bag" `[k, 2 embedding]`, the mean word
    embeddings of both encoders.

    The reset gate r acts on the recurrent part, as in cuDNN and PyTorch:

        n = tanh(W_n x + b_n + r (U_n h + c_n)),  h' = (1 - u) n + u h

    Biases start at 0. With `init="chrono"` the biases of the update gates u start at log(T), with T
    uniform from 1 to 63 words, and a state keeps the share T / (T + 1) per word.

    Source: Logeswaran & Lee 2018; Wang & Isola, B.3; Tallec & Ollivier 2018 for "chrono".
    """

    layers = ("bag", "f", "g", "output")
    required = ("vocabulary_size",)  # fields of the config

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        width = config.embedding
        h = config.dim // 2
        uniform = nnx.initializers.uniform(2 * EMBEDDING_RANGE)
        table = uniform(rngs.params(), (GROUPS[0], config.vocabulary_size, width))
        self.embedding = nnx.Param(table - EMBEDDING_RANGE)
        glorot = nnx.initializers.glorot_uniform(batch_axis=(0, 1))
        self.kernel = nnx.Param(glorot(rngs.params(), (*GROUPS, width, 3 * h)))
        self.recurrent = nnx.Param(_orthogonal(rngs.params(), h))
        bias = jnp.zeros((*GROUPS, 3 * h))
        if config.init == "chrono":
            words = jax.random.uniform(rngs.params(), (*GROUPS, h), minval=1.0, maxval=LONGEST)
            bias = bias.at[..., h : 2 * h].set(jnp.log(words))
        self.bias = nnx.Param(bias)
        self.recurrent_bias = nnx.Param(jnp.zeros((*GROUPS, 3 * h)))
        self.unit_norm = config.unit_norm
        self.dtype = config.dtype

    @staticmethod
    def example(config: ModelConfig) -> jax.ShapeDtypeStruct:
        """Return the shape of an input."""
        return jax.ShapeDtypeStruct((1, 2), jnp.int32)

    def __call__(self, x: Packed | jax.Array, train: bool) -> dict[str, jax.Array]:
        if not isinstance(x, Packed):
            x = _one_per_row(x)
        words = x.words.T  # [t, r]: time is the leading axis of the recurrence
        embedded = jax.vmap(lambda table: table[words])(self.embedding[...])
        f, g = self._final_states(embedded, words, x)
        unit_f = l2_normalize(f)
        unit_g = l2_normalize(g)
        output = jnp.concatenate([unit_f, unit_g], axis=-1)
        layers = {"bag": _mean_embedding(embedded, x), "f": f, "g": g, "output": output}
        if self.unit_norm or not train:
            layers |= {"f": unit_f, "g": unit_g}
        return layers

    def _final_states(self, embedded: jax.Array, words: jax.Array, x: Packed) -> jax.Array:
        """Return the final states of both directions `[encoder, k, dim]`."""
        t, r = words.shape
        inputs = jnp.einsum(
            "etri,edih->tedrh",
            embedded.astype(self.dtype),
            self.kernel[...].astype(self.dtype),
            preferred_element_type=jnp.float32,
        )
        inputs = inputs + self.bias[...][None, :, :, None, :]
        # The backward direction reads the rows from their ends.
        inputs = jnp.stack([inputs[:, :, 0], inputs[::-1, :, 1]], axis=2)
        ends = words == END
        starts = jnp.concatenate([jnp.ones((1, r), bool), ends[:-1]])
        keep = 1.0 - jnp.stack([starts, ends[::-1]], axis=1)  # [t, direction, r]
        states = self._recurrence(inputs, keep)
        row = x.last // t
        forward = states[x.last % t, :, 0, row]
        backward = states[t - 1 - x.first % t, :, 1, row]
        return jnp.swapaxes(jnp.concatenate([forward, backward], axis=-1), 0, 1)

    def _recurrence(self, inputs: jax.Array, keep: jax.Array) -> jax.Array:
        """Return the states `[t, encoder, direction, r, h]`; `keep` is 0 at sentence starts."""
        kernel = self.recurrent[...].astype(self.dtype)
        bias = self.recurrent_bias[...][:, :, None, :]

        def step(state, word):
            x, keep = word
            state = state * keep[None, :, :, None]
            gates = jnp.matmul(state.astype(self.dtype), kernel, preferred_element_type=jnp.float32)
            reset_x, update_x, new_x = jnp.split(x, 3, axis=-1)
            reset_h, update_h, new_h = jnp.split(gates + bias, 3, axis=-1)
            reset = _sigmoid(reset_x + reset_h)
            update = _sigmoid(update_x + update_h)
            new = jnp.tanh(new_x + reset * new_h)
            state = new + update * (state - new)
            return state, state

        start = jnp.zeros((*inputs.shape[1:4], inputs.shape[-1] // 3))
        return lax.scan(step, start, (inputs, keep))[1]


def _one_per_row(words: jax.Array) -> Packed:
    """Return sentences `[k, t]` that already have a row each, padded after their END."""
    k, t = words.shape
    first = jnp.arange(k) * t
    return Packed(words, first, first + jnp.argmax(words == END, axis=1))


def _mean_embedding(embedded: jax.Array, x: Packed) -> jax.Array:
    """Return the mean embeddings of the words before END, `[k, encoder * embedding]`."""
    t = x.words.shape[1]
    row = x.last // t
    first = x.first % t
    last = x.last % t
    sums = jnp.cumsum(embedded, axis=1)
    sums = jnp.concatenate([jnp.zeros_like(sums[:, :1]), sums], axis=1)
    total = sums[:, last, row] - sums[:, first, row]  # [encoder, k, embedding]
    mean = total / jnp.maximum(last - first, 1)[None, :, None]
    return jnp.concatenate(list(mean), axis=-1)


def _orthogonal(key: jax.Array, h: int) -> jax.Array:
    """Return an orthogonal matrix per gate, encoder and direction, `[2, 2, h, 3 h]`."""
    keys = jax.random.split(key, (*GROUPS, 3)).reshape(-1)
    orthogonal = nnx.initializers.orthogonal()
    gates = jnp.stack([orthogonal(key, (h, h)) for key in keys]).reshape(*GROUPS, 3, h, h)
    return jnp.moveaxis(gates, -3, -2).reshape(*GROUPS, h, 3 * h)


def _sigmoid(x: jax.Array) -> jax.Array:
    return 0.5 * jnp.tanh(0.5 * x) + 0.5  # faster on CPUs than with the exponential
