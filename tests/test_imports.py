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
# Layers of the package: a module imports from its own layer and those above it in this list.
LAYERS = (
    ("configs", "utils"),
    ("losses", "moco", "theory"),
    ("augment", "data", "models"),
    ("depth", "encoder", "evaluation", "pretrained", "text", "training"),
    ("reporting", "run"),
    ("cli", "__main__"),
)
LAYER_OF = {name: number for number, names in enumerate(LAYERS) for name in names}
# Third-party package: where alone it may be imported.
HOMES = {name: ["data"] for name in ("sklearn", "tensorflow_datasets", "grain")}
HOMES |= {"scipy": ["data", "depth", "evaluation"], "h5py": ["depth"]}
HOMES |= {"PIL": ["data", "augment"]}
HOMES |= {"flax": ["models", "text.sentence_gru", "depth.predictor"]}
HOMES |= {"orbax": ["training.checkpoints"]}
HOMES |= {"tyro": ["configs", "cli", "text.prepare", "depth.config"]}
HOMES |= {"matplotlib": ["reporting"]}
HOMES |= {"jinja2": ["reporting"]}
HOMES |= {"tensorboardX": ["training.metrics"]}
HOMES |= {name: ["models.weight_files"] for name in ("safetensors", "torch")}
HOMES |= {"equinox": ["models.custom"], "yaml": ["configs"], "wandb": ["training.metrics"]}
# The same of names of JAX's.
ONLY = {"jax.pmap": ["training.distributed"], "jax.distributed": ["training.distributed"]}


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
    for module, tree in TREES.items():
        if module == "__init__":
            continue
        here = LAYER_OF[module.split(".")[0]]
        for name in imported(tree):
            top, *rest = name.split(".")
            if top == "hypersphere_jax" and rest and rest[0] in LAYER_OF:
                assert LAYER_OF[rest[0]] <= here, f"{module} imports {name}"
            elif module.startswith(("losses", "moco", "theory")):
                allowed = {"jax", "numpy", "hypersphere_jax", *sys.stdlib_module_names}
                assert top in allowed, f"{module} imports {name}"
            if module != "cli":
                assert top not in ("experiments", "benchmarks"), f"{module} imports {name}"


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
import hypersphere_jax.evaluation.probe_runs, hypersphere_jax.training.train
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
