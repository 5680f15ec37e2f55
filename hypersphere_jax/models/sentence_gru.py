"""Quick-Thought's two encoders of sentences: bidirectional GRUs with word embeddings of their own.

Both encoders and both directions are one recurrence of four: they see the same sentences.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from hypersphere_jax.configs import ModelConfig
from hypersphere_jax.data.text.packing import END, Packed, one_per_row
from hypersphere_jax.losses import l2_normalize

GROUPS = (2, 2)  # encoders (f and g), directions (forwards and backwards)
LONGEST = 64  # words: `chrono` spreads what update gates remember up to here
SPREAD = 0.1  # word embeddings are drawn from [-SPREAD, SPREAD], as in Quick-Thought's code


class SentenceGRU(nnx.Module):
    """Sentence encoders f and g: word embedding, bidirectional GRU, its two final states.

    Layers: "f" and "g" `[k, dim]`, of unit norm in evaluation, and in training unless the config
    says otherwise; "output" `[k, 2 dim]`, both with unit norm, concatenated, which is what is
    classified; "bag" `[k, 2 embedding]`, the mean embedding of a sentence's words in f and in g,
    the baseline that knows no order.

    It takes `Packed` sentences, or integers `[k, t]` with a sentence in each row. The GRU is that
    of cuDNN and PyTorch: the reset gate r acts on the recurrent part of the candidate,

        n = tanh(W_n x + b_n + r (U_n h + c_n)),  h' = (1 - u) n + u h

    All biases begin at 0, so that a state forgets half of itself with each word until training has
    opened the update gates u. With `init` "chrono" theirs begin at log(T), T uniform from 1 to 63
    words, where a state keeps a share of T / (T + 1) a word.

    Source: Logeswaran & Lee 2018; Wang & Isola, B.3; Tallec & Ollivier 2018 for "chrono".
    """

    layers = ("bag", "f", "g", "output")

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        words, width, h = config.vocabulary_size, config.embedding, config.dim // 2
        uniform = nnx.initializers.uniform(2 * SPREAD)
        self.embedding = nnx.Param(uniform(rngs.params(), (GROUPS[0], words, width)) - SPREAD)
        glorot = nnx.initializers.glorot_uniform(batch_axis=(0, 1))
        self.kernel = nnx.Param(glorot(rngs.params(), (*GROUPS, width, 3 * h)))
        self.recurrent = nnx.Param(_orthogonal(rngs.params(), h))
        self.bias = nnx.Param(jnp.zeros((*GROUPS, 3 * h)))
        if config.init == "chrono":
            self.bias = nnx.Param(self.bias[...].at[..., h : 2 * h].set(_chrono(rngs.params(), h)))
        self.recurrent_bias = nnx.Param(jnp.zeros((*GROUPS, 3 * h)))
        self.unit_norm, self.dtype = config.unit_norm, config.dtype

    def __call__(self, x: Packed | jax.Array, train: bool) -> dict[str, jax.Array]:
        x = x if isinstance(x, Packed) else one_per_row(x)
        words = x.words.T  # [t, r]: time comes first in the recurrence
        embedded = jax.vmap(lambda table: table[words])(self.embedding[...])
        f, g = self._final(embedded, words, x)
        unit_f, unit_g = l2_normalize(f), l2_normalize(g)
        if self.unit_norm or not train:
            f, g = unit_f, unit_g
        output = jnp.concatenate([unit_f, unit_g], axis=-1)
        return {"bag": _bag(embedded, x), "f": f, "g": g, "output": output}

    def _final(self, embedded: jax.Array, words: jax.Array, x: Packed) -> jax.Array:
        """Final states `[encoder, k, dim]` of both directions."""
        t, r = words.shape
        inputs = jnp.einsum(
            "etri,edih->tedrh",
            embedded.astype(self.dtype),
            self.kernel[...].astype(self.dtype),
            preferred_element_type=jnp.float32,
        )
        inputs = inputs + self.bias[...][None, :, :, None, :]
        # The other direction reads the rows from their ends.
        inputs = jnp.stack([inputs[:, :, 0], inputs[::-1, :, 1]], axis=2)
        ends = words == END
        begins = jnp.concatenate([jnp.ones((1, r), bool), ends[:-1]])
        kept = 1.0 - jnp.stack([begins, ends[::-1]], axis=1)  # [t, direction, r]
        states = self._recurrence(inputs, kept)
        row, last, first = x.last // t, x.last % t, x.first % t
        final = jnp.concatenate(
            [states[last, :, 0, row], states[t - 1 - first, :, 1, row]], axis=-1
        )
        return jnp.swapaxes(final, 0, 1)

    def _recurrence(self, inputs: jax.Array, kept: jax.Array) -> jax.Array:
        """States `[t, encoder, direction, r, h]`, each of the one before times what is kept of it.

        The state is zero before a sentence's first word.
        """
        kernel = self.recurrent[...].astype(self.dtype)
        bias = self.recurrent_bias[...][:, :, None, :]

        def step(state, word):
            x, kept = word
            state = state * kept[None, :, :, None]
            gates = jnp.matmul(state.astype(self.dtype), kernel, preferred_element_type=jnp.float32)
            reset_x, update_x, new_x = jnp.split(x, 3, axis=-1)
            reset_h, update_h, new_h = jnp.split(gates + bias, 3, axis=-1)
            reset, update = _sigmoid(reset_x + reset_h), _sigmoid(update_x + update_h)
            new = jnp.tanh(new_x + reset * new_h)
            state = new + update * (state - new)
            return state, state

        start = jnp.zeros((*inputs.shape[1:4], inputs.shape[-1] // 3))
        return lax.scan(step, start, (inputs, kept))[1]


def _bag(embedded: jax.Array, x: Packed) -> jax.Array:
    """Mean embeddings `[k, encoder * embedding]` of the words before END."""
    t = x.words.shape[1]
    row, first, last = x.last // t, x.first % t, x.last % t
    # Sums from the row's first word on, of at most t of them.
    sums = jnp.cumsum(embedded, axis=1)
    sums = jnp.concatenate([jnp.zeros_like(sums[:, :1]), sums], axis=1)
    total = sums[:, last, row] - sums[:, first, row]  # [encoder, k, embedding]
    mean = total / jnp.maximum(last - first, 1)[None, :, None]
    return jnp.concatenate(list(mean), axis=-1)


def _orthogonal(key: jax.Array, h: int) -> jax.Array:
    """An orthogonal matrix for each gate, encoder and direction: `[2, 2, h, 3 h]`."""
    keys = jax.random.split(key, (*GROUPS, 3)).reshape(-1)
    draw = nnx.initializers.orthogonal()
    gates = jnp.stack([draw(key, (h, h)) for key in keys]).reshape(*GROUPS, 3, h, h)
    return jnp.moveaxis(gates, -3, -2).reshape(*GROUPS, h, 3 * h)


def _chrono(key: jax.Array, h: int) -> jax.Array:
    """Biases of update gates, `[2, 2, h]`: log(T), T uniform from 1 to LONGEST - 1 words."""
    return jnp.log(jax.random.uniform(key, (*GROUPS, h), minval=1.0, maxval=LONGEST - 1.0))


def _sigmoid(x: jax.Array) -> jax.Array:
    return 0.5 * jnp.tanh(0.5 * x) + 0.5  # on CPU faster than by the exponential
