"""Parts of a source: long-tailed and uniform subsets, folds, fractions, classes.

The images of a part are a function of the labels and a seed, not of how the source is stored.
"""

import bisect
import functools
import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from hypersphere_jax.configs import UserError, require
from hypersphere_jax.configs.base import did_you_mean
from hypersphere_jax.data.layouts import nfc
from hypersphere_jax.data.source import Sample, Shape, Source
from hypersphere_jax.utils.caches import fingerprint

# Position of the largest class in the quantiles of `long_tailed_counts`, fitted to ImageNet-LT.
FIRST_POSITION = 0.7928
Rng = np.random.Generator | np.random.RandomState


class Subset:
    """The images of a source with some indices `[m]`.

    `what` is the name of the subset in messages. If `kept` contains labels, these classes are kept
    and renumbered from 0.
    """

    def __init__(
        self, source: Source, indices: np.ndarray, what: str, kept: np.ndarray | None = None
    ):
        self.source = source
        self.indices = np.asarray(indices, np.int64)
        self.class_names = source.class_names
        if kept is not None:
            self.class_names = tuple(source.class_names[k] for k in kept)
        self.origin = f"{what} of {source.origin}"
        self.image_shape = source.image_shape
        self._kept = kept

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, i: int) -> Sample:
        return {**self.source[int(self.indices[i])], "label": int(self.labels[i])}

    @functools.cached_property
    def labels(self) -> np.ndarray:
        labels = self.source.labels[self.indices]
        if self._kept is None:
            return labels
        renumbered = np.zeros(len(self.source.class_names), np.int32)
        renumbered[self._kept] = np.arange(len(self._kept))
        return renumbered[labels]

    @functools.cached_property
    def digest(self) -> str:
        parts: list[str | np.ndarray] = [self.source.digest, "\n", self.indices, "\n"]
        if self._kept is not None:
            parts += [self._kept.astype("<i8"), "\n"]
        return fingerprint(*parts)


class Concatenated:
    """Several sources in a row. Those with labels have the same classes."""

    def __init__(self, sources: Sequence[Source]):
        self.sources = tuple(sources)
        self.class_names = next((s.class_names for s in sources if s.class_names), ())
        self.origin = " + ".join(source.origin for source in sources)
        shapes = {source.image_shape for source in sources}
        self.image_shape: Shape | None = shapes.pop() if len(shapes) == 1 else None
        self._ends = list(itertools.accumulate(len(source) for source in sources))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, i: int) -> Sample:
        i = range(len(self))[i]
        number = bisect.bisect_right(self._ends, i)
        source = self.sources[number]
        return source[i - self._ends[number] + len(source)]

    @functools.cached_property
    def labels(self) -> np.ndarray:
        return np.concatenate([source.labels for source in self.sources])

    @functools.cached_property
    def digest(self) -> str:
        return fingerprint(*(f"{source.digest} {len(source)}\n" for source in self.sources))


def long_tailed(source: Source, seed: int) -> Subset:
    """Draw a long-tailed subset, like ImageNet-LT of ImageNet.

    The `long_tailed_counts`, from the largest (at most 1,280), are assigned to random classes that
    have enough images; each class then draws its images.

    Source: balanced paper A.3.4; Liu et al. 2019, Section 3.
    """
    members = _labeled_by_class(source)
    largest = min(1280, max(map(len, members.values())))
    rng = np.random.RandomState(seed)
    free = sorted(members)
    taken = []
    for count in long_tailed_counts(len(members), largest=largest):
        able = [label for label in free if len(members[label]) >= count]
        require(bool(able), f"no class of {source.origin} is left that has {count} images")
        label = able[rng.randint(len(able))]
        free.remove(label)
        taken.append(rng.permutation(members[label])[:count])
    indices = np.sort(np.concatenate(taken))
    return Subset(source, indices, f"long-tailed subset ({len(indices)} images, seed {seed})")


def long_tailed_counts(
    classes: int, alpha: float = 6.0, smallest: int = 5, largest: int = 1280
) -> np.ndarray:
    """Return the class sizes of a long-tailed data set, largest first, int64 `[classes]`.

    They are quantiles of a Pareto distribution with shape alpha, mapped linearly to the range from
    `smallest` to `largest`. With r = 0 for the largest of C classes:

        q_r = ((r + c) / (C - 1 + 2c))^(-1/alpha)
        n_r = smallest + (largest - smallest) (q_r - q_{C-1}) / (q_0 - q_{C-1})

    rounded with the same total. The papers state alpha, the smallest and largest class, and the
    total, but not the draw; c = 0.7928 reproduces ImageNet-LT's total of 115,846.

    Source: balanced paper A.3.4; Liu et al. 2019, "Large-Scale Long-Tailed Recognition in an Open
    World", Section 3.
    """
    message = f"long-tailed: needs two classes of at least {smallest} images"
    require(smallest <= largest and classes >= 2, message)
    positions = np.arange(classes) + FIRST_POSITION
    quantiles = (positions / (classes - 1 + 2 * FIRST_POSITION)) ** (-1 / alpha)
    share = (quantiles - quantiles[-1]) / (quantiles[0] - quantiles[-1])
    sizes = smallest + (largest - smallest) * share
    counts = np.floor(sizes).astype(np.int64)
    # Round up the sizes with the largest fractions.
    by_fraction = np.argsort(counts - sizes, kind="stable")
    counts[by_fraction[: round(sizes.sum()) - counts.sum()]] += 1
    return counts


def uniform(source: Source, seed: int, size: int) -> Subset:
    """Draw a subset with the same number of images per class, up to one, as far as available.

    Source: balanced paper A.3.4 (ImageNet-Uni).
    """
    members = _labeled_by_class(source)
    available = sum(map(len, members.values()))
    require(0 < size <= available, f"size {size}: {source.origin} has {available} labeled images")
    rng = np.random.RandomState(seed)
    shuffled = [rng.permutation(members[label]) for label in rng.permutation(sorted(members))]
    # Taking turns over the classes keeps the first `size` images as even as possible.
    turns = np.concatenate([np.arange(len(images)) for images in shuffled])
    indices = np.sort(np.concatenate(shuffled)[np.argsort(turns, kind="stable")[:size]])
    return Subset(source, indices, f"uniform subset ({size} images, seed {seed})")


def fold(source: Source, folds: int, number: int, seed: int) -> tuple[Subset, Subset]:
    """Return the training and the validation part of a stratified fold, numbered from 0.

    Unlabeled images are stratified like a class.
    """
    if not 2 <= folds <= len(source):
        raise UserError(f"folds {folds}: must be from 2 to {len(source)} images")
    fold_of = stratified_folds(source.labels, folds, np.random.RandomState(seed))
    name = f"fold {number} of {folds}, seed {seed}"
    train = Subset(source, np.flatnonzero(fold_of != number), f"training part ({name})")
    return train, Subset(source, np.flatnonzero(fold_of == number), f"validation part ({name})")


def stratified_folds(labels: np.ndarray, folds: int, rng: Rng) -> np.ndarray:
    """Return the fold of each image, int32 `[n]`; sizes are equal up to one, also per class."""
    fold_of = np.empty(len(labels), np.int32)
    fold_of[np.concatenate(shuffled_classes(labels, rng))] = np.arange(len(labels)) % folds
    return fold_of


def shuffled_classes(labels: np.ndarray, rng: Rng) -> list[np.ndarray]:
    """Return the indices of the images of each label that occurs, in random order."""
    return [rng.permutation(members) for members in _by_label(labels).values()]


def fraction(source: Source, share: float, seed: int) -> Subset:
    """Draw a share of each class, rounded, but at least one image.

    Unlabeled images are drawn like a class. With the same seed a smaller share is a part of a
    larger one.
    """
    classes = shuffled_classes(source.labels, np.random.RandomState(seed))
    taken = [members[: max(1, round(share * len(members)))] for members in classes]
    return Subset(source, np.sort(np.concatenate(taken)), f"{share:.4g} (seed {seed})")


def labelled(source: Source) -> Source:
    """Return the images with labels, or all of them if they are the same."""
    known = np.flatnonzero(np.asarray(source.labels) >= 0)
    return source if len(known) == len(source) else Subset(source, known, "labelled images")


def sample(source: Source, count: int, seed: int) -> Subset:
    """Draw about `count` images, the same share of each class; labelled images if there are any."""
    if np.any(np.asarray(source.labels) >= 0):
        source = labelled(source)
    return fraction(source, min(1.0, count / len(source)), seed)


def by_class(source: Source, names: Sequence[str]) -> Subset:
    """Return the images of some classes, renumbered in the order of their sorted names."""
    wanted = sorted(set(map(nfc, names)))
    known = list(map(nfc, source.class_names))
    check_classes(wanted, known, source.origin)
    kept = np.array([known.index(name) for name in wanted])
    indices = np.flatnonzero(np.isin(source.labels, kept))
    return Subset(source, indices, f"{len(kept)} classes", kept)


def check_classes(names: Iterable[str], known: Iterable[str], origin: str) -> None:
    """Raise UserError for an unknown name, with a similar known one."""
    if unknown := sorted(set(names) - set(known)):
        hint = did_you_mean(unknown[0], known)
        raise UserError(f"{origin} lacks {len(unknown)} classes, such as {unknown[0]!r}{hint}")


def _labeled_by_class(source: Source) -> dict[int, np.ndarray]:
    """Return the indices of labeled images by label."""
    members = _by_label(source.labels)
    members.pop(-1, None)
    require(bool(members), f"{source.origin} has no labels, and this subset is drawn by class")
    return members


def _by_label(labels: np.ndarray) -> dict[int, np.ndarray]:
    """Return the indices of the images of each label that occurs, by label."""
    order = np.argsort(labels, kind="stable")
    values, starts = np.unique(labels[order], return_index=True)
    return dict(zip(values.tolist(), np.split(order, starts[1:]), strict=True))
