"""Faults: deliberate errors in the package, each of which a test must catch.

    python tests/faults.py [WORD ...]

A fault changes the syntax tree of one function, which is found by its name wherever it is. The
runner tries the faults whose description, target or tests contain one of the words; by default
all. For each, a process imports the faulty module instead of the real one and runs tests until one
fails: first the fast ones, then those marked slow. The exit status is 1 if a fault is not caught.
"""

import argparse
import ast
import functools
import importlib.machinery
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import pytest
from fault_edits import (
    Edit,
    Fault,
    argument,
    argument_of,
    assigned,
    constant,
    keyword,
    operator,
    renamed,
    returns,
)

ROOT = Path(__file__).parent.parent
PACKAGE = "hypersphere_jax"

# Faults, by the tests that must catch them: files and folders, the quickest first.

FAULTS = {
    "tests/losses/test_losses.py tests/losses": [
        # Formulas.
        Fault("another power of the distance", "distance_power", constant(2, 1)),
        Fault("NaN at zero distance", "distance_power", operator(ast.Eq, ast.Lt)),
        Fault("n^2 pairs", "uniform_loss", argument("log_count", 0, "n * n")),
        Fault("pairs of queries count twice", "uniform_queue_loss", argument("log", 0, "1")),
        Fault("rows only", "contrastive_loss", keyword("PairsBetween", "columns_are_anchors")),
        Fault("positive repels", "dcl_loss", keyword("PairsBetween", "exclude")),
        Fault("positive repels", "balanced_contrastive_loss", renamed("VIEWS", "SELF")),
        Fault("neighbour of the wrong device", "_neighbors", renamed("behind", "ahead")),
        Fault(
            "same samples on all devices",
            "prior_matching_loss",
            assigned("positions", "jnp.arange(n)"),
        ),
        Fault(
            "point is its own positive",
            "_supervised_contrastive",
            assigned("positives", "class_sums(unmasked)"),
        ),
        Fault("classes of one device", "_supervised_contrastive", argument_of("global_sum")),
        Fault("zeros become NaN", "l2_normalize", argument_of("clip")),
        # Sums over pairs.
        Fault("devices in another order", "_gather_others", operator(ast.USub, ast.UAdd)),
        Fault("ring is one step short", "_reduce_along_ring", argument("fori_loop", 0, "1")),
        Fault("large logits overflow", "points.within_range", returns("jnp.isfinite(highest)")),
        Fault("half the gradient", "PairsWithin", constant(2, 1)),
        Fault("rounding to half precision", "validate_features", returns("arrays")),
        Fault("no sharding", "sharding._compiled", argument("PartitionSpec", 0, "None")),
        # Masks and weights.
        Fault("masked rows stay NaN", "apply_mask", assigned("arrays", "arrays")),
        Fault("masked points are negatives", "make_points", argument_of("where", 1)),
        Fault("padding forms pairs", "block_sweep.split_blocks", keyword("pad", "constant_values")),
        Fault("weights of one device", "normalize_weights", argument_of("global_sum")),
        Fault("gradient without weights", "_softmax_shift", returns("shift")),
    ],
    "tests/losses/test_jepa.py tests/losses/test_devices.py": [
        Fault("no trapezoids", "_sigreg", assigned("steps", "jnp.full_like(nodes, 0.625)")),
        Fault("sums of one device", "_sigreg", argument_of("global_mean")),
        Fault("quantiles of one device", "_visreg", assigned("ranks", "1 + jnp.arange(n)")),
    ],
    "tests/training/test_temperature.py tests/training/test_objectives.py": [
        Fault(
            "temperature decays", "network_mask", returns("jax.tree.map(lambda _: True, params)")
        ),
        Fault("temperature without a bound", "update_state", argument_of("clip")),
        Fault("config's temperature", "objectives._with_temperature", returns("value")),
        Fault("no labels are a class", "_one_class_per_unlabelled", returns("labels")),
    ],
    "tests/test_moco.py": [
        Fault("queue fills from its start", "queue_push", assigned("ptr", "jnp.int32(0)")),
        Fault("first keys stay", "queue_push", argument("set", 0, "new[: n - dropped]")),
        Fault("gradient through the queue", "queue_push", argument_of("stop_gradient")),
        Fault("keys of one device", "queue_push", argument_of("all_gather")),
        Fault("queue is not on the sphere", "queue_init", argument_of("l2_normalize")),
        Fault("average without the target", "ema_update", renamed("old", "new")),
        Fault("keys in another order", "moco.shuffle", argument_of("argsort")),
        Fault("samples stay in their group", "moco.permutation", assigned("least_step", "0")),
    ],
    "tests/training/test_train_step.py tests/training": [
        Fault("gradient of one device", "update_state", argument_of("pmean")),
        Fault("positions within a device", "step._positions", assigned("device", "0")),
        Fault("second view is the first", "make_step", assigned("second", "first")),
        Fault("labels of other images", "make_step", argument("objective", 2, "labels[positions]")),
        Fault("same views in each step", "make_step", argument_of("fold_in")),
        Fault(
            "uniformity of a view", "objectives._align_uniform", argument("uniform_loss", 0, "x")
        ),
        Fault("batch norm of one device", "norm.statistics", argument_of("pmean")),
        Fault("one group of batch norm", "BatchNorm._by_groups", operator(ast.Eq, ast.GtE)),
    ],
    "tests/training/test_microbatches.py tests/training": [
        Fault("sum of statistics", "encode_microbatches", renamed("mean", "sum")),
        Fault("rows of a batch", "distributed.local_rows", argument("reshape", 0, "1")),
    ],
    "tests/training/test_optimizers.py tests/training": [
        Fault("weight decay of biases", "make_optimizer", assigned("decayed", "None")),
    ],
    "tests/training/test_moco_step.py tests/training": [
        Fault(
            "keys among their negatives", "make_moco_step", argument("objective", 2, "positives")
        ),
        Fault("key of the query's view", "_momentum_keys", argument("one_view", 4, "0")),
        Fault("keys stay shuffled", "_momentum_keys", argument_of("undo")),
        Fault("momentum encoder stays", "make_moco_step", argument_of("ema_update")),
        Fault("queue stays", "make_moco_step", argument_of("queue_push")),
        Fault("key of the same view", "make_moco_step", assigned("key_views", "query_views")),
    ],
    "tests/training/test_checkpoint.py tests/training/test_resuming.py tests/training": [
        Fault("oldest checkpoint", "checkpoints.newest", argument_of("reversed")),
        Fault("checksums ignored", "checkpoints._read", assigned("changed", "[]")),
        Fault("first batches again", "open_batches", argument("range", 0, "0")),
        Fault("repeated steps stay logged", "MetricLogger", operator(ast.LtE, ast.NotEq)),
        Fault("files written in place", "files.atomic_write", assigned("partial", "path")),
        Fault(
            "queue starts anew",
            "RunRecord.restore",
            argument("from_first_process", 0, "state._replace(momentum=initial.momentum)"),
        ),
    ],
    "tests/training": [
        Fault("labels of training", "callbacks.split_images", assigned("is_supervised", "False")),
    ],
    "tests/data": [
        Fault("epochs are the same", "Sampler._order", argument("default_rng", 0, "self._seed")),
        Fault("folds share images", "subsets.fold", operator(ast.NotEq, ast.GtE)),
    ],
    "tests/evaluation/test_logistic.py tests/evaluation": [
        Fault("penalty by fitted rows", "cross_validate", argument("fit_logistic", 1, "part >= 0")),
    ],
    "tests/evaluation/test_knn.py tests/evaluation/test_retrieval.py tests/evaluation": [
        Fault("padding rows are neighbours", "knn._prepare", returns("(x, halves)")),
        Fault("precision at R is left out", "_average_precisions", operator(ast.LtE, ast.Lt)),
    ],
    "tests/evaluation": [
        Fault("rate by fitted rows", "_fit_minibatches", assigned("fitted", "np.arange(len(y))")),
        Fault("first cell", "scores.best_cell", renamed("max", "min")),
        Fault("no test split", "_probe_encoder", assigned("sources", "[dataset.train] * 2")),
        Fault("unreadable images count", "features._on_host", operator(ast.GtE, ast.NotEq)),
    ],
    "tests/test_finetune.py": [
        Fault("rate by fitted images", "finetune.held_out", renamed("setdiff1d", "intersect1d")),
        Fault(
            "rate by the test split",
            "finetune._choose_rate",
            argument("score", 1, "run_dir.test_split(dataset)"),
        ),
    ],
    "tests/text/test_labelled.py tests/text": [
        Fault("neighbours of the same fold", "knn._fold_searches", operator(ast.NotEq, ast.GtE)),
        Fault("penalty by test fold", "sentence_probe", argument("_inner_top1", 2, "outer >= 0")),
    ],
}
CASES = [(fault, paths) for paths, group in FAULTS.items() for fault in group]


# Faulty modules.


class Definition(NamedTuple):
    """A function or class of the package."""

    module: str
    path: Path
    names: list[str]  # from the top of the module to the definition


def find(target: str) -> Definition:
    """Return the only definition whose dotted name ends with the target."""
    found = []
    for path, text in _sources().items():
        if re.search(rf"(def|class) {target.split('.')[-1]}\b", text):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            for names in _definitions(ast.parse(text), []):
                if f".{module}.{'.'.join(names)}".endswith(f".{target}"):
                    found.append(Definition(module.removesuffix(".__init__"), path, names))
    if len(found) != 1:
        raise LookupError(f"{target}: {len(found)} definitions in {PACKAGE}")
    return found[0]


@functools.cache
def _sources() -> dict[Path, str]:
    return {path: path.read_text() for path in (ROOT / PACKAGE).rglob("*.py")}


def _definitions(node: ast.AST, names: list[str]) -> Iterator[list[str]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            yield [*names, child.name]
            yield from _definitions(child, [*names, child.name])


class _Editor(ast.NodeTransformer):
    def __init__(self, edit: Edit):
        self.edit = edit

    def generic_visit(self, node: ast.AST) -> ast.AST:
        return self.edit(super().generic_visit(node))


def faulty_tree(fault: Fault, definition: Definition) -> ast.Module:
    """Return the syntax tree of the fault's module, with the fault."""
    tree = ast.parse(definition.path.read_text())
    node: Any = tree
    for name in definition.names:
        node = next(child for child in ast.walk(node) if getattr(child, "name", None) == name)
    _Editor(fault.edit).visit(node)
    return ast.fix_missing_locations(tree)


class _FaultyLoader(importlib.machinery.SourceFileLoader):
    """Imports the module of a fault."""

    def __init__(self, fault: Fault):
        self.fault = fault
        self.definition = find(fault.target)
        super().__init__(self.definition.module, str(self.definition.path))

    def get_code(self, fullname: str) -> CodeType:
        return compile(faulty_tree(self.fault, self.definition), self.path, "exec")

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self.definition.module:
            return None
        return importlib.util.spec_from_file_location(name, self.path, loader=self)


# Running the tests.


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="parts of descriptions, targets or tests")
    words = parser.parse_args().words
    missed = 0
    for number, (fault, paths) in enumerate(CASES):
        text = f"{fault.target}: {fault.what}"
        if words and not any(word in f"{text} {paths}" for word in words):
            continue
        failure = first_failure(paths, number)
        missed += failure is None
        print(f"{text}: {failure or 'MISSED'}", flush=True)
    sys.exit(missed > 0)


def first_failure(paths: str, number: int) -> str | None:
    """Return pytest's line about the first test that fails with a fault."""
    for tier in ("not slow", "slow"):
        for path in paths.split():
            if failure := run_tests(path, tier):
                sys.exit(f"without a fault: {failure}")
            if failure := run_tests(path, tier, str(number)):
                return failure
    return None


@functools.cache
def run_tests(path: str, tier: str, number: str = "") -> str | None:
    """Run tests until one fails, and return pytest's line about that one.

    Args:
      path: file or folder of tests.
      tier: expression of markers.
      number: fault, as a position in `CASES`; defaults to none.
    """
    code = f"import faults; faults.run_pytest({path!r}, {tier!r}, {number!r})"
    command = [sys.executable, "-B", "-c", code]
    done = subprocess.run(command, cwd=ROOT / "tests", capture_output=True, text=True)
    if done.returncode not in (0, 1, 5):  # passed, failed, or no tests of this tier
        sys.exit(f"{done.stdout}{done.stderr}pytest ended with status {done.returncode}")
    failures = re.findall(r"^(?:FAILED|ERROR).*", done.stdout, re.MULTILINE)
    return failures[0] if done.returncode == 1 else None


def run_pytest(path: str, tier: str, number: str) -> None:
    """Run tests in this process, with a fault."""
    os.chdir(ROOT)
    if number:
        sys.meta_path.insert(0, _FaultyLoader(CASES[int(number)][0]))
    sys.exit(pytest.main(["-x", "-q", "-m", tier, path]))


if __name__ == "__main__":
    main()
