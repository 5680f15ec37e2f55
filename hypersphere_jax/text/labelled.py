"""Labelled sentences, and their classification by Quick-Thought's protocol."""

import dataclasses
import functools
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from hypersphere_jax.configs import ProbeConfig, require
from hypersphere_jax.configs.base import did_you_mean
from hypersphere_jax.data import Dataset
from hypersphere_jax.evaluation import logistic
from hypersphere_jax.evaluation.checks import SelectedRows, check_splits
from hypersphere_jax.evaluation.scores import (
    Classifier,
    best_cell,
    classification_scores,
    grid_rows,
    top_classes,
    validation_folds,
)
from hypersphere_jax.text.packing import END, UNKNOWN
from hypersphere_jax.text.sentence_training import run_vocabulary
from hypersphere_jax.text.text_files import read_lines
from hypersphere_jax.text.tokenizer import tokenize
from hypersphere_jax.training import distributed
from hypersphere_jax.utils.caches import fingerprint

logger = logging.getLogger("hypersphere_jax")

TASKS = {"mr": "rt-polarity", "cr": "custrev"}  # file stems of the tasks in Table 4
CLASSES = ("neg", "pos")
LONGEST = 128  # tokens; longer sentences are truncated
STRENGTHS = tuple(2.0**-k for k in range(9))
# Protocols that cross-validate, since labelled sentences have no test split.
CROSS_VALIDATED = {"quick_thought", "knn", "knn_weighted"}


@dataclasses.dataclass(eq=False)
class LabelledSentences:
    """Source of labelled sentences in memory."""

    tokens: np.ndarray  # int32 [n, t], each row with END and then padding
    labels: np.ndarray  # int32 [n]
    origin: str
    class_names: tuple[str, ...] = CLASSES

    @property
    def image_shape(self) -> tuple[int, ...]:
        return self.tokens.shape[1:]

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"image": self.tokens[i], "label": int(self.labels[i])}

    @functools.cached_property
    def digest(self) -> str:
        """Fingerprint of tokens and labels."""
        return fingerprint(repr(self.tokens.shape), self.tokens, self.labels)


def load_labelled(name: str, data_dir: Path | None, vocabulary: Sequence[str]) -> Dataset:
    """Load labelled sentences as token ids, truncated to `LONGEST` tokens.

    Args:
      name: "mr" or "cr" in `data_dir`; or the path STEM of two files STEM.pos and STEM.neg with a
        sentence per line, or of two compressed files STEM.pos.gz and STEM.neg.gz.
      data_dir: folder of the named tasks.
      vocabulary: word of each token id, as `Corpus.vocabulary`.

    Returns:
      A dataset without a test split.

    Raises:
      UserError: for missing or empty files.
    """
    path = Path(name).expanduser()
    if name in TASKS:
        require(data_dir is not None, f"{name} needs data_dir=, the folder of {TASKS[name]}.pos")
        path = Path(data_dir).expanduser() / TASKS[name]
    lines = [_read_class(path, label) for label in CLASSES]
    labels = np.repeat(np.arange(len(CLASSES), dtype=np.int32), [len(part) for part in lines])
    sentences = [tokenize(line) for part in lines for line in part]
    longest = max(map(len, sentences)) + 1
    if longest > LONGEST:
        logger.warning("%s: sentences are truncated to %d words", path, LONGEST - 1)
    ids = {word: index for index, word in enumerate(vocabulary)}
    tokens = np.zeros((len(sentences), min(LONGEST, longest)), np.int32)
    for row, sentence in zip(tokens, sentences, strict=True):
        known = [ids.get(word, UNKNOWN) for word in sentence[: len(row) - 1]]
        row[: len(known) + 1] = [*known, END]
    source = LabelledSentences(tokens, labels, str(path))
    return Dataset(source, None, source, "none")


def _read_class(path: Path, label: str) -> list[str]:
    """Return the sentences of a class; the path is a stem or the file of any class."""
    stem = path.name.removesuffix(".gz").removesuffix(".pos").removesuffix(".neg")
    files = [path.with_name(f"{stem}.{label}{ending}") for ending in ("", ".gz")]
    file = next(filter(Path.is_file, files), None)
    require(
        file is not None,
        f"no file {files[0]} or {files[1].name}{did_you_mean(stem, TASKS)}; name "
        f"{' or '.join(TASKS)} with data_dir=, or the STEM of STEM.pos and STEM.neg",
    )
    lines = [line for line in read_lines(file) if line.strip()]
    require(bool(lines), f"{file} contains no sentence")
    return lines


def probe_tasks(folder: Path, config: ProbeConfig) -> dict[str, Dataset]:
    """Load the labelled sentences that a config names, by the last part of each path."""
    require(bool(config.data), f"{folder} is a run of sentences: name labelled ones with data=")
    vocabulary = run_vocabulary(folder)
    data_dir = Path(config.data_dir) if config.data_dir else None
    tasks = {Path(name).name: load_labelled(name, data_dir, vocabulary) for name in config.data}
    require(len(tasks) == len(config.data), "data=: two tasks have the same name")
    is_usable = set(config.protocols) <= CROSS_VALIDATED
    require(is_usable, "labelled sentences have no test split: use protocols=quick_thought or knn")
    return tasks


@distributed.isolated()
def sentence_probe(
    x: Any,
    y: Any,
    *,
    num_classes: int,
    seed: int = 0,
    folds: int = 10,
    inner_folds: int = 10,
    devices: Sequence[jax.Device] | None = None,
) -> dict[str, Any]:
    r"""Return the accuracy of logistic regression by nested cross-validation.

    Each of the stratified outer folds is the test part once. Cross-validation on the other folds
    chooses the strength of the penalty from `STRENGTHS`, the largest of equals, for a last fit on
    all of them. A fit minimizes

        sum of the cross-entropies + strength / 2 |w|^2    (the bias is not penalized)

    on the features as they are, like scikit-learn's `LogisticRegression` with C = 1 / strength.

    Args:
      x: features `[n, d]`.
      y: labels `[n]`.
      num_classes: number of classes.
      seed: seed of the folds and of the bootstrap.
      folds: outer folds.
      inner_folds: folds of each training part.
      devices: devices of this process that share the rows. Defaults to JAX's first.

    Returns:
      The entries of `classification_scores` over all rows, and the choices. `chosen` is the median,
      `n_train` the minimum and `fold_top1` the mean over the outer folds. `top1_standard_error`
      comes from the spread of the outer folds.

    Raises:
      UserError: for invalid features, labels or options.
    """
    x, y, *_ = check_splits(x, y, None, None, num_classes)
    classes, ids = np.unique(y, return_inverse=True)
    outer = validation_folds(ids, folds, seed)
    options = {"num_classes": len(classes), "devices": devices}
    problem = logistic.place(x, ids, fits=len(STRENGTHS), **options)
    ranked = np.empty((len(y), min(len(classes), 5)), np.int32)  # best classes of each row
    inner_top1 = []
    chosen = []
    by_fold = []
    converged = True
    for fold in range(folds):
        top1 = _inner_top1(problem, ids, outer != fold, inner_folds, seed)
        best = best_cell(top1)
        rows = np.flatnonzero(outer == fold)
        ranks, has_converged = _classify(problem, outer != fold, STRENGTHS[best], x, rows)
        ranked[rows] = classes[ranks]
        inner_top1.append(top1)
        chosen.append(best)
        by_fold.append(100 * float(np.mean(ranked[rows, 0] == y[rows])))
        converged &= has_converged
    median = sorted(chosen, reverse=True)[folds // 2]
    valid_top1 = [top1[:, best] for top1, best in zip(inner_top1, chosen, strict=True)]
    cells = [{"strength": strength} for strength in STRENGTHS]
    return {
        "protocol": "quick_thought",
        **classification_scores(ranked, y, num_classes=num_classes, seed=seed),
        "n": len(y),
        "n_train": len(y) - int(np.bincount(outer).max()),
        "d": x.shape[1],
        "num_classes": num_classes,
        "chosen": cells[median],
        "chosen_by_fold": [STRENGTHS[best] for best in chosen],
        "chosen_at_edge": median in (0, len(STRENGTHS) - 1),
        "valid_top1": float(np.mean(valid_top1)),
        "grid": grid_rows(cells, np.mean(inner_top1, axis=1)),
        "top1_by_fold": by_fold,
        "top1_standard_error": float(np.std(by_fold, ddof=1) / math.sqrt(folds)),
        "folds": folds,
        "inner_folds": inner_folds,
        "seed": seed,
        "converged": converged,
    }


def _inner_top1(
    problem: logistic.Problem, ids: np.ndarray, is_training: np.ndarray, folds: int, seed: int
) -> np.ndarray:
    """Return accuracies on the inner folds of a training part `[folds, strengths]`."""
    inner = validation_folds(ids[is_training], folds, seed, "inner_folds")
    fold_of_row = np.full(len(ids), -1, np.int32)
    fold_of_row[is_training] = inner
    fitted_rows = is_training.sum() - np.bincount(inner)
    penalty = _penalty(problem, [STRENGTHS], fitted_rows[:, None])
    top1, _ = logistic.cross_validate(problem, fold_of_row, penalty)
    return top1


def _classify(
    problem: logistic.Problem, is_training: np.ndarray, strength: float, x: Any, rows: np.ndarray
) -> tuple[np.ndarray, bool]:
    """Return the best classes of some rows by a fit on others, and whether it converged."""
    l2 = _penalty(problem, [strength], is_training.sum())
    fit = logistic.fit_logistic(problem, is_training, l2)
    classifier = Classifier(*(leaf[0] for leaf in fit.classifiers))
    k = min(problem.num_classes, 5)
    ranks = top_classes(classifier, SelectedRows(x, rows), k, problem.scaling.apply)
    return ranks, bool(fit.gradient_norm[0] <= logistic.limit(l2[0]))


def _penalty(problem: logistic.Problem, strengths: Any, rows: np.ndarray) -> np.ndarray:
    """Convert strengths for sums to penalties for means over rows of scaled features."""
    vectors = 2 if problem.num_classes == 2 else 1  # scikit-learn has one vector for two classes
    return np.asarray(strengths) / (rows * problem.scaling.scale**2) * vectors
