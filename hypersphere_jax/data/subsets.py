"""Parts of a source by index: long-tailed and uniform subsets, folds, fractions, classes.

Which images a part has is a function of the labels and a seed, not of how the source is stored.
"""

import bisect
import difflib
import functools
import hashlib
import itertools
from collections.abc import Sequence

import numpy as np

from hypersphere_jax.config import require
from hypersphere_jax.data.source import Sample, Source

# Position of the first class in the quantiles of `long_tailed_counts`; fits ImageNet-LT's total.
FIRST_POSITION = 0.7928


class Subset:
    """Some images of a source, in the order of `indices`.

    Args:
      source: to take them from.
      indices: integers `[m]`; an image may occur several times.
      what: which images these are, for messages.
      kept: labels of the classes that they have, which are numbered anew from 0; None: as before.
    """

    def __init__(
        self, source: Source, indices: np.ndarray, what: str, kept: np.ndarray | None = None
    ):
        self.source, self.indices = source, np.asarray(indices, np.int64)
        if len(indices) and not 0 <= self.indices.min() <= self.indices.max() < len(source):
            raise ValueError(f"indices must be from 0 to {len(source) - 1}")
        self.class_names = source.class_names
        self.origin = f"{what} of {source.origin}"
        self.image_shape = source.image_shape
        self._kept = kept
        if kept is not None:
            self._new_labels = np.full(len(source.class_names), -1, np.int32)
            self._new_labels[kept] = np.arange(len(kept))
            self.class_names = tuple(source.class_names[label] for label in kept)

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, i: int) -> Sample:
        sample = self.source[int(self.indices[i])]
        if self._kept is None:
            return sample
        return {**sample, "label": int(self._new_labels[sample["label"]])}

    @functools.cached_property
    def labels(self) -> np.ndarray:
        """int32 `[m]`."""
        labels = self.source.labels[self.indices]
        return labels if self._kept is None else self._new_labels[labels]

    @functools.cached_property
    def digest(self) -> str:
        """Of the source, the indices and the classes kept."""
        kept = () if self._kept is None else (self._kept,)
        return _digest(self.source.digest, self.indices, *kept)


class Concatenated:
    """Several sources after one another, all with the same classes.

    Args:
      sources: at least one.

    Raises:
      UserError: when their classes differ. Sources without any class (unlabelled images) fit all.
    """

    def __init__(self, sources: Sequence[Source]):
        named = {source.class_names for source in sources if source.class_names}
        require(
            len(named) <= 1,
            "cannot join sources with different classes: "
            + "; ".join(f"{len(source.class_names)} of {source.origin}" for source in sources),
        )
        self.sources = tuple(sources)
        self.class_names = named.pop() if named else ()
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


def long_tailed(
    source: Source,
    seed: int,
    size: int | None = None,
    alpha: float = 6.0,
    smallest: int = 5,
    largest: int | None = None,
) -> Subset:
    """A long-tailed subset, as ImageNet-LT is one of ImageNet.

    The `long_tailed_counts`, from the largest on, go to random classes that have as many images;
    then each class draws that many of its images.

    Args:
      source: with labels.
      seed: of the draw.
      size: images in all; None: as follows from the rest.
      alpha: shape of the Pareto distribution.
      smallest: images of the smallest class.
      largest: images of the largest class; None: 1,280 as in ImageNet-LT, or as many as the largest
        class of the source has.

    Raises:
      UserError: when classes have too few images, or no sizes give such a total.

    Source: balanced paper A.3.4; Liu et al. 2019, Section 3.
    """
    members = _labelled(source)
    most = max(map(len, members.values()))
    largest = min(1280, most) if largest is None else largest
    rng = np.random.RandomState(seed)
    free, taken = sorted(members), []
    for count in long_tailed_counts(len(members), size, alpha, smallest, largest):
        able = [label for label in free if len(members[label]) >= count]
        require(
            bool(able),
            f"no class of {source.origin} is left that has {count} images (the largest has "
            f"{most}): take a smaller largest, or size",
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
    draw; c = 0.7928 gives the total of ImageNet-LT, 115,846, for its 1,000 classes. Of these, 387
    have more than 100 images and 143 fewer than 20. Another `size` is met by another c.

    Raises:
      UserError: when no c gives that size.

    Source: balanced paper A.3.4; Liu et al. 2019, "Large-Scale Long-Tailed Recognition in an Open
    World", Section 3.
    """
    require(
        1 <= smallest <= largest and classes >= 2 and alpha > 0,
        f"long-tailed: smallest {smallest}, largest {largest}, alpha {alpha}, {classes} classes: "
        "needs 1 <= smallest <= largest, alpha > 0 and two classes",
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
    """A subset with equally many images of each class, up to one; as ImageNet-Uni of ImageNet.

    The paper draws from all images alike, which gives nearly this for ImageNet's classes of nearly
    one size. A class with too few images gives all it has.

    Raises:
      UserError: when the source has fewer images with labels.

    Source: balanced paper A.3.4.
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
    """The training and the validation part of one of several stratified folds.

    Args:
      source: to divide; images without label are one class.
      folds: how many, at least 2.
      number: which, from 0.
      seed: of the division.
    """
    require(2 <= folds <= len(source), f"folds {folds}: from 2 to the {len(source)} images")
    require(0 <= number < folds, f"fold {number}: they are numbered from 0 to {folds - 1}")
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

    Images without label count as one class. With the same seed, a smaller share is a part of a
    larger one.
    """
    require(0 < share <= 1, f"share {share}: must be above 0 and at most 1")
    classes = shuffled_classes(source.labels, np.random.RandomState(seed))
    taken = [members[: max(1, round(share * len(members)))] for members in classes]
    return Subset(source, np.sort(np.concatenate(taken)), f"{share:.4g} (seed {seed})")


def by_class(source: Source, names: Sequence[str]) -> Subset:
    """The images of some classes, which are numbered anew, in the order of their sorted names.

    Raises:
      UserError: for a name that is no class of the source.
    """
    check_classes(names, source.class_names, source.origin)
    kept = np.array([source.class_names.index(name) for name in sorted(set(names))])
    indices = np.flatnonzero(np.isin(source.labels, kept))
    return Subset(source, indices, f"{len(kept)} classes", kept)


def check_classes(names: Sequence[str], known: Sequence[str], origin: str) -> None:
    """Raises `UserError` for a name that is not known, with the nearest one that is."""
    unknown = sorted(set(names) - set(known))
    near = difflib.get_close_matches(unknown[0], known, n=1) if unknown else []
    meant = f" (did you mean {near[0]!r}?)" if near else ""
    require(not unknown, f"{origin} lacks the classes {some(unknown)}{meant}")


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
