"""Parts of a source by index: long-tailed and uniform subsets, folds, fractions, classes.

Which images a part has is a function of the labels and a seed, not of how the source is stored.
"""

import bisect
import functools
import hashlib
import itertools
import unicodedata
from collections.abc import Iterable, Sequence

import numpy as np

from hypersphere_jax.configs import UserError, require
from hypersphere_jax.configs.base import did_you_mean
from hypersphere_jax.data.source import Sample, Source

# Position of the first class in the quantiles of `long_tailed_counts`; fits ImageNet-LT's total.
FIRST_POSITION = 0.7928
# Names of classes are compared and sorted in this form: macOS writes another one.
nfc = functools.partial(unicodedata.normalize, "NFC")


class Subset:
    """Some images of a source, in the order of `indices` `[m]`.

    `what` they are is for messages. The labels `kept` are numbered anew from 0; None: as before.
    """

    def __init__(
        self, source: Source, indices: np.ndarray, what: str, kept: np.ndarray | None = None
    ):
        self.source, self.indices = source, np.asarray(indices, np.int64)
        every = range(len(source.class_names))
        self.class_names = tuple(source.class_names[k] for k in (every if kept is None else kept))
        self.origin = f"{what} of {source.origin}"
        self.image_shape = source.image_shape
        self._kept = kept

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, i: int) -> Sample:
        return {**self.source[int(self.indices[i])], "label": int(self.labels[i])}

    @functools.cached_property
    def labels(self) -> np.ndarray:
        """int32 `[m]`."""
        labels = self.source.labels[self.indices]
        if self._kept is None:
            return labels
        numbers = np.zeros(len(self.source.class_names), np.int32)
        numbers[self._kept] = np.arange(len(self._kept))
        return numbers[labels]

    @functools.cached_property
    def digest(self) -> str:
        """Of the source, the indices and the classes kept."""
        kept = () if self._kept is None else (self._kept,)
        return _digest(self.source.digest, self.indices, *kept)


class Concatenated:
    """Sources after one another, all with the same classes, or none (unlabelled images)."""

    def __init__(self, sources: Sequence[Source]):
        self.sources = tuple(sources)
        self.class_names = next((s.class_names for s in sources if s.class_names), ())
        self.origin = " + ".join(source.origin for source in sources)
        shapes = {source.image_shape for source in sources}
        self.image_shape = shapes.pop() if len(shapes) == 1 else None
        self._ends = list(itertools.accumulate(len(source) for source in sources))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, i: int) -> Sample:
        i = range(len(self))[i]
        part = bisect.bisect_right(self._ends, i)
        return self.sources[part][i - (self._ends[part - 1] if part else 0)]

    @functools.cached_property
    def labels(self) -> np.ndarray:
        """int32 `[n]`."""
        return np.concatenate([source.labels for source in self.sources])

    @functools.cached_property
    def digest(self) -> str:
        """Of all sources, in their order."""
        return _digest(*(f"{source.digest} {len(source)}" for source in self.sources))


def long_tailed(source: Source, seed: int, size: int | None = None) -> Subset:
    """A long-tailed subset, as ImageNet-LT is one of ImageNet.

    The `long_tailed_counts`, from the largest on (at most 1,280), go to random classes that have as
    many images; then each class draws that many of its images. `size` is the sum of all.

    Source: balanced paper A.3.4; Liu et al. 2019, Section 3.
    """
    members = _labelled(source)
    most = max(map(len, members.values()))
    rng = np.random.RandomState(seed)
    free, taken = sorted(members), []
    for count in long_tailed_counts(len(members), size, largest=min(1280, most)):
        able = [label for label in free if len(members[label]) >= count]
        require(
            bool(able),
            f"no class of {source.origin} is left that has {count} images: take a smaller size",
        )
        label = able[rng.randint(len(able))]
        free.remove(label)
        taken.append(rng.permutation(members[label])[:count])
    indices = np.sort(np.concatenate(taken))
    return Subset(source, indices, f"long-tailed subset ({len(indices)} images, seed {seed})")


def long_tailed_counts(
    classes: int,
    size: int | None = None,
    alpha: float = 6.0,
    smallest: int = 5,
    largest: int = 1280,
) -> np.ndarray:
    """Class sizes of a long-tailed set, largest first, int64 `[classes]`.

    They are quantiles of a Pareto distribution with shape alpha, mapped linearly to the range from
    `smallest` to `largest`. With r = 0 for the largest of C classes:

        q_r = ((r + c) / (C - 1 + 2c))^(-1/alpha)
        n_r = smallest + (largest - smallest) (q_r - q_{C-1}) / (q_0 - q_{C-1})

    rounded so that the total is kept. The papers give alpha, both ends and the total, but not the
    draw; c = 0.7928 gives the total of ImageNet-LT, 115,846. Another `size` is met by another c.

    Source: balanced paper A.3.4; Liu et al. 2019, "Large-Scale Long-Tailed Recognition in an Open
    World", Section 3.
    """
    require(
        smallest <= largest and classes >= 2,
        f"long-tailed: needs two classes, of {smallest} images and more",
    )

    def exact(first: float) -> np.ndarray:
        quantiles = ((np.arange(classes) + first) / (classes - 1 + 2 * first)) ** (-1 / alpha)
        share = (quantiles - quantiles[-1]) / (quantiles[0] - quantiles[-1])
        return smallest + (largest - smallest) * share

    first = FIRST_POSITION
    if size is not None:
        low, high = 1e-60, 1e3
        least, most = round(exact(low).sum()), round(exact(high).sum())
        require(
            least <= size <= most,
            f"long-tailed: {classes} classes of {smallest} to {largest} images have from {least} "
            f"to {most} in all, not {size}",
        )
        for _ in range(100):
            first = np.sqrt(low * high)
            low, high = (first, high) if exact(first).sum() < size else (low, first)
    sizes = exact(first)
    total = round(sizes.sum()) if size is None else size
    counts = np.floor(sizes).astype(np.int64)
    most_cut = np.argsort(counts - sizes, kind="stable")
    counts[most_cut[: total - counts.sum()]] += 1
    return counts


def uniform(source: Source, seed: int, size: int) -> Subset:
    """A subset with equally many images of each class, up to one, where it has as many.

    Source: balanced paper A.3.4 (ImageNet-Uni).
    """
    members = _labelled(source)
    available = sum(map(len, members.values()))
    require(0 < size <= available, f"size {size}: {source.origin} has {available} labelled images")
    rng = np.random.RandomState(seed)
    mixed = [rng.permutation(members[label]) for label in rng.permutation(sorted(members))]
    # Round-robin over the classes: the first `size` images are as even as they can be.
    turns = np.concatenate([np.arange(len(images)) for images in mixed])
    indices = np.sort(np.concatenate(mixed)[np.argsort(turns, kind="stable")[:size]])
    return Subset(source, indices, f"uniform subset ({size} images, seed {seed})")


def fold(source: Source, folds: int, number: int, seed: int) -> tuple[Subset, Subset]:
    """The training and the validation part of fold `number`, from 0; no label is a class, too."""
    require(2 <= folds <= len(source), f"folds {folds}: from 2 to the {len(source)} images")
    part = stratified_folds(source.labels, folds, np.random.RandomState(seed))
    name = f"fold {number} of {folds}, seed {seed}"
    return (
        Subset(source, np.flatnonzero(part != number), f"training part ({name})"),
        Subset(source, np.flatnonzero(part == number), f"validation part ({name})"),
    )


def stratified_folds(
    labels: np.ndarray, folds: int, rng: np.random.Generator | np.random.RandomState
) -> np.ndarray:
    """The fold of each image, int32 `[n]`: equal sizes, in all and of each class, up to one."""
    part = np.empty(len(labels), np.int32)
    part[np.concatenate(shuffled_classes(labels, rng))] = np.arange(len(labels)) % folds
    return part


def shuffled_classes(
    labels: np.ndarray, rng: np.random.Generator | np.random.RandomState
) -> list[np.ndarray]:
    """Indices of the images of each label that occurs, sorted by label, in random order within."""
    return [rng.permutation(members) for members in _by_label(labels).values()]


def fraction(source: Source, share: float, seed: int) -> Subset:
    """That share of each class, rounded, but at least one image.

    Images without label are a class, too. With one seed, a smaller share is a part of a larger one.
    """
    classes = shuffled_classes(source.labels, np.random.RandomState(seed))
    taken = [members[: max(1, round(share * len(members)))] for members in classes]
    return Subset(source, np.sort(np.concatenate(taken)), f"{share:.4g} (seed {seed})")


def by_class(source: Source, names: Sequence[str]) -> Subset:
    """The images of some classes, which are numbered anew, in the order of their sorted names."""
    names, known = sorted(set(map(nfc, names))), list(map(nfc, source.class_names))
    check_classes(names, known, source.origin)
    kept = np.array([known.index(name) for name in names])
    indices = np.flatnonzero(np.isin(source.labels, kept))
    return Subset(source, indices, f"{len(kept)} classes", kept)


def check_classes(names: Iterable[str], known: Iterable[str], origin: str) -> None:
    """Raises `UserError` for a name that is not known, with the nearest one that is."""
    if unknown := sorted(set(names) - set(known)):
        hint = did_you_mean(unknown[0], known)
        raise UserError(f"{origin} lacks the classes {some(unknown)}{hint}")


def some(names: Sequence[str]) -> str:
    """The first few of many, for one line."""
    more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
    return ", ".join(map(repr, names[:3])) + more


def _labelled(source: Source) -> dict[int, np.ndarray]:
    """As `_by_label`, without the images that have no label."""
    members = _by_label(source.labels)
    members.pop(-1, None)
    require(bool(members), f"this subset goes by class, and {source.origin} has no labels")
    return members


def _by_label(labels: np.ndarray) -> dict[int, np.ndarray]:
    """Indices of the images of each label that occurs, by label."""
    order = np.argsort(labels, kind="stable")
    values, starts = np.unique(labels[order], return_index=True)
    return dict(zip(values.tolist(), np.split(order, starts[1:]), strict=True))


def _digest(*parts: str | np.ndarray) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() if isinstance(part, str) else part.astype("<i8").tobytes())
        digest.update(b"\n")
    return digest.hexdigest()[:16]
