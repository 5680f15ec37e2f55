"""Imports go down the floors only, heavy packages stay in their places, and importing is light."""

import ast
import sys
from pathlib import Path

import processes
import pytest

PACKAGE = Path(__file__).parent.parent / "hypersphere_jax"
TREES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts): ast.parse(path.read_text())
    for path in sorted(PACKAGE.rglob("*.py"))
}
FLOORS = (
    "configs extras files memory terminal xla_flags",
    "array_files cache_files losses moco packing theory training.processes training.stopping",
    "augment data models training.profiling training.sharding",
    "data.batches training.checkpoints training.metrics training.objectives"
    " training.optimizers training.resolve training.run_dir training.step",
    "encoder evaluate finetune loading pretrained training.recorder training.setup training.train"
    " training.vmapped",
    "data.data_verb reporting run",
    "cli __main__",
)
FLOOR_OF = {name: floor for floor, names in enumerate(FLOORS) for name in names.split()}
FLOOR_OF |= {"__init__": 1, "training.__init__": 0}  # the package itself re-exports floor 1
OF_FLOOR_1 = {"jax", "numpy", "hypersphere_jax", *sys.stdlib_module_names}
# Third-party package: where alone it may be imported.
HOMES = {name: ["data"] for name in ("sklearn", "h5py", "scipy", "tensorflow_datasets", "grain")}
HOMES["scipy"] = ["data", "evaluate"]
HOMES |= {"PIL": ["data", "augment"], "flax": ["models"]}
HOMES |= {"orbax": ["training.checkpoints"]}
HOMES |= {"tyro": ["configs", "cli"], "matplotlib": ["reporting"]}
HOMES |= {"jinja2": ["reporting"]}
HOMES |= {"tensorboardX": ["training.metrics"]}
HOMES |= {"safetensors": ["pretrained"], "torch": ["pretrained"]}
HOMES |= {"equinox": ["models.custom"], "yaml": ["configs"], "wandb": ["training.metrics"]}
# The same of names of JAX's.
ONLY = {"jax.pmap": ["training.sharding"], "jax.distributed": ["training.processes"]}


def part_of(module):
    """What has a floor: a module at the top, a folder, or a file of a folder that has its own."""
    top = module.split(".")[0]
    own = ".".join(module.split(".")[:2])
    return own if own in FLOOR_OF else top


def imported(tree):
    """Dotted names of what is imported, here, too; not what only a type checker imports."""
    guarded = [
        n for n in ast.walk(tree) if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.unparse(n)
    ]
    unread = {node for guard in guarded for node in ast.walk(guard)}
    for node in set(ast.walk(tree)) - unread:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_imports_go_down():
    assert len(TREES) > 80
    for module, tree in TREES.items():
        here = part_of(module)
        for name in imported(tree):
            said = f"{module} (floor {FLOOR_OF[here]}) imports {name}"
            top, *rest = name.split(".")
            if top == "hypersphere_jax" and rest and rest[0] != "__version__":
                there = part_of(".".join(rest)) if part_of(".".join(rest)) in FLOOR_OF else None
                there = there or "__init__"  # a name that the package itself exports
                assert FLOOR_OF[there] <= FLOOR_OF[here], said
                assert there == here or not FLOOR_OF[there] == FLOOR_OF[here] == 2, said
            elif FLOOR_OF[here] == 1:
                assert top in OF_FLOOR_1, said
            assert here == "cli" or top not in ("experiments", "benchmarks"), said


def test_heavy_packages_stay_in_their_places():
    for module, tree in TREES.items():
        names = set(imported(tree))
        names |= {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        for name in names:
            for heavy, homes in (HOMES | ONLY).items():
                if name == heavy or name.startswith(f"{heavy}."):
                    assert any(f"{module}.".startswith(f"{home}.") for home in homes), (
                        module,
                        name,
                    )


def test_importing_brings_jax_and_numpy_only():
    code = """
import sys
import jax, jax.numpy, numpy
before = set(sys.modules)
from hypersphere_jax import moco, theory
new = {name.split(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)
assert new == {"hypersphere_jax"}, new
from jax._src import xla_bridge  # nothing is computed, so that processes can still find each other
assert not xla_bridge.backends_are_initialized()
import hypersphere_jax.evaluate.probe_verb, hypersphere_jax.training.train
late = {"tensorflow_datasets", "tensorflow", "grain", "h5py", "scipy.io", "sklearn"}
late |= {"PIL", "matplotlib", "safetensors", "tensorboardX"}  # training on arrays needs none
late |= {"orbax.checkpoint"}  # the first step comes before
assert not late & set(sys.modules)
from hypersphere_jax import models
from hypersphere_jax.configs import ModelConfig
models.abstract(ModelConfig(image_size=8, in_channels=1))  # as loading does, before training may
assert not xla_bridge.backends_are_initialized()
"""
    done = processes.python("-c", code)
    assert done.returncode == 0, done.stderr
    # The command line's help needs no jax; names are there all the same.
    code = """
import contextlib, sys
import benchmarks, hypersphere_jax.cli
commands = [[command] for command in hypersphere_jax.cli.COMMANDS]
for words in [*commands, *(["bench", part] for part in benchmarks.PARTS)]:
    with contextlib.suppress(SystemExit):
        hypersphere_jax.cli.main([*words, "--help"])
with contextlib.suppress(SystemExit):
    hypersphere_jax.cli.main(["bench", "step", "--model", "vit"])
assert "jax" not in sys.modules
hypersphere_jax.cli.main(["data", "list"])
assert "jax" not in sys.modules
assert {"align_loss", "load", "losses"} <= {*dir(hypersphere_jax), "losses"}
assert hypersphere_jax.losses.align_loss is hypersphere_jax.align_loss
assert not hasattr(hypersphere_jax, "nothing")
"""
    done = processes.python("-c", code)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_importing_changes_nothing_in_the_users_process():
    code = f"""
import asyncio, importlib, logging, os, signal, sys, threading, warnings, jax
third_party = "absl.logging grain h5py jax matplotlib.pyplot optax orbax.checkpoint PIL.Image tyro"
third_party += " flax.nnx rich.progress scipy.stats sklearn.datasets tensorboardX"
for name in third_party.split():
    importlib.import_module(name)
def state():
    loggers = {{"": logging.getLogger()}} | logging.Logger.manager.loggerDict
    return {{
        **{{name: (log.level, log.handlers[:], log.filters[:]) for name, log in loggers.items()
           if isinstance(log, logging.Logger) and not name.startswith("hypersphere_jax")}},
        "hooks": (sys.unraisablehook, sys.excepthook, threading.excepthook, sys.displayhook),
        "signals": [signal.getsignal(number) for number in signal.valid_signals()],
        "warnings": warnings.filters[:],
        "jax": dict(jax.config.values),
        "environment": dict(os.environ),
    }}
before = state()
for name in {sorted(TREES)}:
    importlib.import_module(f"hypersphere_jax.{{name}}".removesuffix(".__init__"))
after = state()
changed = [name for name in before if before[name] != after[name]]
assert not changed, changed
levels = {{name: after[name][0] for name in after.keys() - before.keys() if after[name][0]}}
assert not levels, levels
"""
    done = processes.python("-c", code)
    assert done.returncode == 0, done.stderr
