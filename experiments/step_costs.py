"""What a step of each network takes, counted from its program and kept in step_costs.json.

    python -m experiments.step_costs     # counts those that are missing there; takes minutes

So `reproduce` says at once what its runs take. An entry has, as a number for the whole step and one
for each pair of its batch, the FLOP of products and convolutions, the elements that all other
operations give, and the bytes of memory beside the images, as XLA lays them out for a CPU.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments.costs import DIM, FILE, VOCABULARY, key, plain, shape_of
from hypersphere_jax import data, models
from hypersphere_jax.configs import DataConfig, PretrainConfig
from hypersphere_jax.moco import queue_init
from hypersphere_jax.text.packing import END, SPECIAL, pack
from hypersphere_jax.training import resolve
from hypersphere_jax.training.optimizers import make_optimizer, make_schedule
from hypersphere_jax.training.step import Momentum, init_state, make_step_of, scalars_of

LENGTHS = (4, 8, 12, 16, 20, 24, 34, 64)  # words of sentences: those of novels, roughly
PAIRS = 16, 32  # of the counted steps, and of those whose memory is asked for
COMPILED = 8, 16
# What gives no new elements, or none that XLA computes.
FREE = ("broadcast_in_dim", "convert_element_type", "copy", "iota", "reshape", "slice", "squeeze")
FREE += ("transpose",)


def counted(config: PretrainConfig) -> dict[str, list[float]]:
    """`flop` and `elements` of a step: of all of it, and of each pair."""
    texts = config.reads_text
    few, many = (count(program(with_pairs(config, n))) for n in (PAIRS if not texts else (0, 0)))
    names = ("flop", "elements")
    if texts:  # the update of the words is most of a small step, and does not grow with the batch
        return {name: [value, 0] for name, value in zip(names, many, strict=True)}
    return {name: _line(PAIRS, of) for name, *of in zip(names, few, many, strict=True)}


def _line(pairs: tuple[int, int], values: list[float]) -> list[float]:
    each = (values[1] - values[0]) / (pairs[1] - pairs[0])
    return [max(0.0, round(values[0] - each * pairs[0])), round(each)]


def with_pairs(config: PretrainConfig, pairs: int) -> PretrainConfig:
    """The config with another batch; 0: with its own."""
    return config.replace(batch_size=pairs or config.batch_size)


def memory(config: PretrainConfig) -> list[float]:
    """Bytes of a step's temporary arrays: of all of it, and of each pair."""

    def temporary(pairs: int) -> float:
        step, start, batch = make(with_pairs(config, pairs), None)
        arguments = jax.eval_shape(start), *batch, jax.eval_shape(jax.random.key, 0)
        lowered = jax.jit(step, donate_argnums=0).lower(*arguments)
        compiled = lowered.compile(compiler_options={"xla_backend_optimization_level": "0"})
        return compiled.memory_analysis().temp_size_in_bytes

    if config.reads_text:
        return [temporary(0), 0]
    return _line(COMPILED, [temporary(pairs) for pairs in COMPILED])


def program(config: PretrainConfig) -> Any:
    """The step's jaxpr: nothing is computed or compiled."""
    step, start, batch = make(config, None)
    key = jax.eval_shape(jax.random.key, 0)
    return jax.make_jaxpr(step)(jax.eval_shape(start), *batch, key).jaxpr


def count(jaxpr: Any) -> tuple[float, float]:
    """FLOP of a program's matrix products and convolutions, and elements of all else it computes.

    Loops count with all their turns, of branches the one with most products: those of losses that
    have none are for features far from unit norm; of those for platforms the last, the default.
    (XLA's own `cost_analysis` counts the body of a loop once, and so a recurrent network's words.)
    """
    flop, elements = 0.0, 0.0
    for equation in jaxpr.eqns:
        name, given = equation.primitive.name, equation.params
        shapes = [variable.aval.shape for variable in equation.invars]
        size = sum(math.prod(variable.aval.shape) for variable in equation.outvars)
        leaves = [getattr(leaf, "jaxpr", leaf) for leaf in jax.tree.leaves(list(given.values()))]
        inner = [count(leaf) for leaf in leaves if hasattr(leaf, "eqns")]
        if name == "cond":
            inner = [inner[-1] if given.get("branches_platforms") else max(inner)]
        turns = given["length"] if name == "scan" else 1
        flop += turns * sum(each for each, _ in inner)
        elements += turns * sum(each for _, each in inner)
        if name == "dot_general":
            (contracted, _), _ = given["dimension_numbers"]
            flop += 2 * size * math.prod(shapes[0][axis] for axis in contracted)
        elif name == "conv_general_dilated":
            kernel, outputs = shapes[1], given["dimension_numbers"].rhs_spec[0]
            # Of a dilated image all but one in so many are zeros.
            taps = math.prod(kernel) / kernel[outputs] / math.prod(given["lhs_dilation"])
            flop += 2 * size * taps
        elif not inner and name not in FREE:
            elements += size
    return flop, elements


def make(config: PretrainConfig, axis_name: str | None) -> tuple[Callable, Callable, tuple]:
    """Step, what makes its first state, and a batch of random images or words."""
    random, pairs = np.random.default_rng(0), config.batch_size
    if config.reads_text:
        source = None
        config = config.replace(vocabulary_size=VOCABULARY)
        sentences = [
            np.append(random.integers(len(SPECIAL), VOCABULARY, n - 1), END).astype(np.int32)
            for n in np.resize(LENGTHS, pairs)
        ]
        batch = *pack(sentences, max(LENGTHS)), np.zeros(0, np.int32), np.zeros(0, np.int32)
    else:
        shape = (2 * pairs, *shape_of(config))
        images = random.integers(0, 256, shape, dtype=np.uint8)
        labels = np.arange(len(images), dtype=np.int32) % 2
        source = data.Arrays(images, labels, ("a", "b"), "random images")
        recipe = config.recipe or data.NAMED[config.data]
        few = DataConfig(recipe=config.recipe, bits=config.extra_channels)
        config = config.replace(**vars(few))
        config = resolve.resolve(config, data.Dataset(source, source, source, recipe))
        batch = images, labels, np.arange(pairs, dtype=np.int32)
    apply, _, _ = models.abstract(config)
    optimizer = make_optimizer(config, make_schedule(config, 1000))

    def start():
        _, params, stats = models.create(config, jax.random.key(0))
        state = init_state(params, stats, optimizer)
        if not config.queue_size:
            return state
        queue = queue_init(jax.random.key(1), config.queue_size, DIM)
        return state._replace(momentum=Momentum(params, stats, queue))

    step, scalars = make_step_of(config, apply, 1000, axis_name=axis_name), scalars_of(config)
    return lambda *arguments: step(*arguments, scalars), start, batch


def write(configs: list[PretrainConfig], file: Path = FILE) -> None:
    """Adds the steps of these runs to the file, and leaves out what none of them takes."""
    kept = json.loads(file.read_text())["steps"] if file.is_file() else {}
    temporary: dict[tuple, list[float]] = {}
    steps = {}
    for name, config in {key(config): plain(config) for config in configs}.items():
        if name not in kept:
            print(name, flush=True)
            model = config.model  # heads and augmentations hardly matter to the memory
            network = (model.name, model.width, model.image_size, model.embedding)
            if network not in temporary:
                temporary[network] = memory(config)
            state = jax.tree.leaves(jax.eval_shape(make(config, None)[1]))
            # A key of random numbers has no bytes of its own.
            held = sum(x.size * getattr(x.dtype, "itemsize", 0) for x in state)
            whole, each = temporary[network]
            kept[name] = counted(config) | {"bytes": [whole + held, each]}
        steps[name] = kept[name]
        lines = [f"  {json.dumps(each)}: {json.dumps(steps[each])}" for each in sorted(steps)]
        head = '"made by": "python -m experiments.step_costs"'
        file.write_text("{" + head + ', "steps": {\n' + ",\n".join(lines) + "\n}}\n")


if __name__ == "__main__":
    from experiments.reproduce import all_configs  # which needs this module

    write(all_configs())
