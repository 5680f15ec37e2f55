"""Float64 loop oracles of the losses, written from the papers' equations alone.

They share no code with `hypersphere_jax`. Before equation numbers, W&I is Wang & Isola, Chen is
Chen et al. (generalized contrastive loss), BCL is the balanced contrastive loss paper. Weights, of
pairs or points, make a mean a weighted one.
Only `nt_xent_oracle` with similarity="cosine" normalizes; elsewhere features enter as they are.
"""

import math

import numpy as np


def _rows(*arrays):
    """Each array as a list of vectors."""
    return [list(np.asarray(array, np.float64)) for array in arrays]


def _squared_distance(u, v):
    return float((u - v) @ (u - v))


def _mean(values, weights=None):
    return float(np.average(list(values), weights=weights))


def _log_sum_exp(values):
    return np.logaddexp.reduce(list(values))


def align_oracle(x, y, alpha=2.0, weights=None):
    """W&I 4.1.1 and B.1: mean of the distance of a positive pair to the power alpha."""
    pairs = zip(*_rows(x, y), strict=True)
    return _mean((_squared_distance(u, v) ** (alpha / 2) for u, v in pairs), weights)


def uniform_oracle(x, t=2.0, include_self=False, weights=None):
    """W&I Eq. (9), or Eq. (8) with include_self: log of the mean Gaussian potential."""
    (x,) = _rows(x)
    n, w = range(len(x)), np.ones(len(x)) if weights is None else weights
    pairs = [(i, j) for i in n for j in n if (include_self or i != j) and w[i] * w[j] > 0]
    total = _log_sum_exp(
        math.log(w[i] * w[j]) - t * _squared_distance(x[i], x[j]) for i, j in pairs
    )
    return total - math.log(sum(w[i] * w[j] for i, j in pairs))


def uniformity(x, t=2.0):
    """`uniform_oracle` by arrays, for hundreds of points: over all pairs of different ones."""
    x = np.float64(x)
    squares = ((x[:, None] - x[None]) ** 2).sum(-1)[~np.eye(len(x), dtype=bool)]
    return math.log(np.exp(-t * squares).mean())


def contrastive_oracle(x, y, tau=0.5, symmetric=True, weights=None):
    """W&I B.1, with the minus sign of Eq. (1): 2K cross-entropies, x over y and y over x."""
    x, y = _rows(x, y)
    sides = ((x, y), (y, x)) if symmetric else ((x, y),)
    entropies = (
        _log_sum_exp(anchor @ other / tau for other in others) - anchor @ positive / tau
        for anchors, others in sides
        for anchor, positive in zip(anchors, others, strict=True)
    )
    return _mean(entropies, None if weights is None else [*weights] * len(sides))


def info_nce_oracle(query, key, negatives, tau=0.07):
    """W&I Eq. (1): one positive key for each query, against negatives that all queries share."""
    query, key, negatives = _rows(query, key, negatives)
    return _mean(
        _log_sum_exp(q @ other / tau for other in [k, *negatives]) - q @ k / tau
        for q, k in zip(query, key, strict=True)
    )


def uniform_queue_oracle(query, queue, t=2.0, intra_batch=True):
    """W&I Eq. (22), or Eq. (21) without intra_batch: NK pairs, then K(K-1)/2 unordered ones."""
    query, queue = _rows(query, queue)
    pairs = [(q, k) for q in query for k in queue]
    if intra_batch:
        pairs += [(query[i], query[j]) for i in range(len(query)) for j in range(i)]
    return _log_sum_exp(-t * _squared_distance(u, v) for u, v in pairs) - math.log(len(pairs))


def _anchors(z1, z2):
    """For each of the 2n views: itself, its positive, and all the others."""
    z1, z2 = _rows(z1, z2)
    n, z = len(z1), z1 + z2
    for i in range(2 * n):
        p = (i + n) % (2 * n)
        yield z[i], z[p], [z[k] for k in range(2 * n) if k not in (i, p)]


def nt_xent_oracle(z1, z2, tau=0.5, similarity="cosine", weights=None):
    """BCL Eq. (15) with tau = 1/alpha, mean over the 2n anchors; neg_euclidean: footnote 4."""
    compare = {
        "cosine": lambda u, v: u @ v / math.sqrt((u @ u) * (v @ v)),
        "dot": np.dot,
        "neg_euclidean": lambda u, v: -_squared_distance(u, v),
    }[similarity]
    entropies = (
        _log_sum_exp(compare(anchor, other) / tau for other in [positive, *others])
        - compare(anchor, positive) / tau
        for anchor, positive, others in _anchors(z1, z2)
    )
    return _mean(entropies, None if weights is None else [*weights] * 2)


def supervised_contrastive_oracle(z, labels, tau=0.1, weights=None):
    """Khosla et al. (Supervised Contrastive Learning) Eq. (2), over points that have a positive."""
    (z,) = _rows(z)
    losses, counts = [], []
    for i, label in enumerate(labels):
        others = [k for k in range(len(z)) if k != i]
        positives = [k for k in others if labels[k] == label]
        if positives:
            total = _log_sum_exp(z[i] @ z[k] / tau for k in others)
            losses.append(-_mean(z[i] @ z[p] / tau - total for p in positives))
            counts.append(1.0 if weights is None else weights[i])
    return _mean(losses, counts)


def decoupled_nt_xent_oracle(z1, z2, tau=1.0, lam=0.1, scaling="per_sample", self_similarity=False):
    """Chen Eq. (5), or per_dimension: alignment as half the mean square over n and d.

    With self_similarity the term of the authors' notebook: each view among the others, less log d.
    """
    apart = {
        "per_sample": lambda u, v: -u @ v,
        "per_dimension": lambda u, v: _squared_distance(u, v) / (2 * len(u)),
    }[scaling]
    return _mean(
        apart(z, positive)
        + lam
        * (
            _log_sum_exp(z @ v / tau for v in [positive, *others, *([z] * self_similarity)])
            - self_similarity * math.log(len(z))
        )
        for z, positive, others in _anchors(z1, z2)
    )


def lightly_dcl_oracle(z1, z2, tau):
    """`DCLLoss` of lightly 1.5.21 and newer: both views of the other images in one log-sum-exp."""
    z1, z2 = np.float64(z1), np.float64(z2)
    losses, off = [], ~np.eye(len(z1), dtype=bool)
    for one, other in ((z1, z2), (z2, z1)):
        within, across = one @ one.T / tau, one @ other.T / tau
        negatives = [side[off].reshape(len(z1), -1) for side in (within, across)]
        sums = np.logaddexp.reduce(np.concatenate(negatives, axis=1), axis=1)
        losses.append(np.mean(sums - np.diag(across)))
    return np.mean(losses)


def logsumexp_oracle(z, tau=0.5):
    """Chen Section C: the second term of Eq. (5), of the n features of one view."""
    (z,) = _rows(z)
    n = range(len(z))
    return _mean(_log_sum_exp(z[i] @ z[k] / tau for k in n if k != i) for i in n)


def dcl_oracle(z1, z2, tau=0.5):
    """BCL Eq. (14) with tau = 1/alpha, mean over both views as anchors; negatives cross-view."""
    z1, z2 = _rows(z1, z2)
    n = range(len(z1))
    return _mean(
        _log_sum_exp(one[i] @ other[j] / tau for j in n if j != i) - one[i] @ other[i] / tau
        for one, other in ((z1, z2), (z2, z1))
        for i in n
    )


def balanced_contrastive_oracle(z1, z2, alpha=4.0, lam=2.0):
    """BCL Eq. (17): 2(n-1) negatives of both views, mean over the 2n anchors."""
    return _mean(
        lam / alpha * _log_sum_exp(alpha * z @ other for other in others) - z @ positive
        for z, positive, others in _anchors(z1, z2)
    )


def generalized_nt_xent_oracle(z1, z2, alpha=2.0, lam=2.0):
    """BCL Eq. (17) with the positive in the sum as well (section 6): 2n - 1 terms."""
    return decoupled_nt_xent_oracle(z1, z2, 1 / alpha, lam / alpha)


def sliced_wasserstein_oracle(h, prior_samples, directions):
    """Chen Algorithm 1, divided by n d' in place of the printed d d'."""
    h, prior_samples = _rows(h, prior_samples)
    squares = []
    for column in np.asarray(directions, np.float64).T:
        sides = [sorted(row @ column for row in x) for x in (h, prior_samples)]
        squares += [(p - w) ** 2 for p, w in zip(*sides, strict=True)]
    return _mean(squares)


def _neighbours(count):
    """`i, j, weight` of all positives: 1/2 for both neighbours of i, or 1 where there is one."""
    for i in range(count):
        near = [j for j in (i - 1, i + 1) if 0 <= j < count]
        yield from ((i, j, 1 / len(near)) for j in near)


def quick_thought_contrastive_oracle(f, g, tau=1.0):
    """W&I B.3: cross-entropy of f_i over all g_j (its own included) to its neighbours."""
    f, g = _rows(f, g)
    total = sum(
        weight * (_log_sum_exp(f[i] @ g_k / tau for g_k in g) - f[i] @ g[j] / tau)
        for i, j, weight in _neighbours(len(f))
    )
    return total / len(f)


def quick_thought_align_oracle(f, g, alpha=2.0):
    """W&I B.3, with the weights of the contrastive loss: 1/2 for each neighbour, 1 at the ends."""
    f, g = _rows(f, g)
    terms = (w * _squared_distance(f[i], g[j]) ** (alpha / 2) for i, j, w in _neighbours(len(f)))
    return sum(terms) / len(f)


def quick_thought_uniform_oracle(f, g, t=2.0):
    """W&I B.3, each encoder with the log of Eq. (9): the sum of the two, not their mean."""
    return uniform_oracle(f, t) + uniform_oracle(g, t)


def numeric_slope(oracle, arrays, directions, eps=1e-6):
    """Central difference in float64 of oracle(*arrays) with arrays moved along directions."""
    pairs = [(np.float64(a), np.float64(d)) for a, d in zip(arrays, directions, strict=True)]
    up, down = (oracle(*(a + e * d for a, d in pairs)) for e in (eps, -eps))
    return (up - down) / (2 * eps)


def numeric_slopes(oracle, arrays, directions, eps=1e-6):
    """The slope in each array alone, along its direction."""
    zeros = [np.zeros(np.shape(d)) for d in directions]
    return [
        numeric_slope(oracle, arrays, [*zeros[:k], d, *zeros[k + 1 :]], eps)
        for k, d in enumerate(directions)
    ]


def numeric_bend(oracle, arrays, directions, eps=1e-4):
    """The second derivative of oracle(*arrays) along one direction of all arrays."""
    ends = [
        oracle(*(np.float64(a) + step * v for a, v in zip(arrays, directions, strict=True)))
        for step in (eps, 0.0, -eps)
    ]
    return (ends[0] - 2 * ends[1] + ends[2]) / eps**2
