"""Float64 loop oracles of the losses, written from the papers' equations alone.

They share no code with `hypersphere_jax`. Before equation numbers, W&I is Wang & Isola, Chen is
Chen et al. (generalized contrastive loss), BCL is the balanced contrastive loss paper.
Only `nt_xent_oracle` with similarity="cosine" normalizes; elsewhere features enter as they are.
"""

import math

import numpy as np


def _rows(features):
    return np.asarray(features, dtype=np.float64).tolist()


def _dot(u, v):
    return math.fsum(a * b for a, b in zip(u, v, strict=True))


def _squared_distance(u, v):
    return math.fsum((a - b) ** 2 for a, b in zip(u, v, strict=True))


def _unit(u, eps=1e-12):
    norm = max(math.sqrt(_dot(u, u)), eps)
    return [a / norm for a in u]


def _mean(values):
    values = list(values)
    return math.fsum(values) / len(values)


def _log_sum_exp(values):
    values = list(values)
    top = max(values)
    return top + math.log(math.fsum(math.exp(v - top) for v in values))


def _log_mean_exp(values):
    values = list(values)
    return _log_sum_exp(values) - math.log(len(values))


def _both_views(z1, z2):
    """The 2n features in one list, and for each the index of its positive."""
    n = len(z1)
    return z1 + z2, [i + n for i in range(n)] + list(range(n))


def align_oracle(x, y, alpha=2.0):
    """W&I 4.1.1 and B.1: mean of the distance of a positive pair to the power alpha."""
    x, y = _rows(x), _rows(y)
    return _mean(_squared_distance(x[i], y[i]) ** (alpha / 2) for i in range(len(x)))


def uniform_oracle(x, t=2.0, include_self=False):
    """W&I Eq. (9), or Eq. (8) with include_self: log of the mean Gaussian potential."""
    x = _rows(x)
    exponents = []
    for i in range(len(x)):
        for j in range(len(x)):
            if include_self or i != j:
                exponents.append(-t * _squared_distance(x[i], x[j]))
    return _log_mean_exp(exponents)


def uniformity(x, t=2.0):
    """`uniform_oracle` by arrays, for hundreds of points: over all pairs of different ones."""
    x = np.float64(x)
    squares = ((x[:, None] - x[None]) ** 2).sum(-1)[~np.eye(len(x), dtype=bool)]
    return math.log(np.exp(-t * squares).mean())


def contrastive_oracle(x, y, tau=0.5):
    """W&I B.1, with the minus sign of Eq. (1): 2K cross-entropies, x over y and y over x."""
    x, y = _rows(x), _rows(y)
    terms = []
    for i in range(len(x)):
        positive = _dot(x[i], y[i]) / tau
        terms.append(_log_sum_exp(_dot(x[i], y_j) / tau for y_j in y) - positive)
        terms.append(_log_sum_exp(_dot(x_j, y[i]) / tau for x_j in x) - positive)
    return _mean(terms)


def info_nce_oracle(query, key, negatives, tau=0.07):
    """W&I Eq. (1): one positive key for each query, against negatives that all queries share."""
    query, key, negatives = _rows(query), _rows(key), _rows(negatives)
    terms = []
    for i in range(len(query)):
        positive = _dot(query[i], key[i]) / tau
        logits = [positive]
        for negative in negatives:
            logits.append(_dot(query[i], negative) / tau)
        terms.append(_log_sum_exp(logits) - positive)
    return _mean(terms)


def uniform_queue_oracle(query, queue, t=2.0, intra_batch=True):
    """W&I Eq. (22), or Eq. (21) without intra_batch: NK pairs, then K(K-1)/2 unordered ones."""
    query, queue = _rows(query), _rows(queue)
    exponents = []
    for i in range(len(query)):
        for j in range(len(queue)):
            exponents.append(-t * _squared_distance(query[i], queue[j]))
    if intra_batch:
        for i in range(len(query)):
            for j in range(i + 1, len(query)):
                exponents.append(-t * _squared_distance(query[i], query[j]))
    return _log_mean_exp(exponents)


def nt_xent_oracle(z1, z2, tau=0.5, similarity="cosine"):
    """BCL Eq. (15) with tau = 1/alpha, mean over the 2n anchors; neg_euclidean: footnote 4."""
    z, positive_of = _both_views(_rows(z1), _rows(z2))
    if similarity == "cosine":
        z = [_unit(u) for u in z]
        compare = _dot
    elif similarity == "dot":
        compare = _dot
    elif similarity == "neg_euclidean":

        def compare(u, v):
            return -_squared_distance(u, v)

    else:
        raise ValueError(similarity)
    terms = []
    for i in range(len(z)):
        logits = [compare(z[i], z[j]) / tau for j in range(len(z)) if j != i]
        terms.append(_log_sum_exp(logits) - compare(z[i], z[positive_of[i]]) / tau)
    return _mean(terms)


def decoupled_nt_xent_oracle(z1, z2, tau=1.0, lam=0.1, scaling="per_sample"):
    """Chen Eq. (5), or per_dimension: alignment as half the mean square over n and d."""
    z, positive_of = _both_views(_rows(z1), _rows(z2))
    alignment, distribution = [], []
    for i in range(len(z)):
        partner = z[positive_of[i]]
        if scaling == "per_sample":
            alignment.append(-_dot(z[i], partner))
        elif scaling == "per_dimension":
            alignment.append(_squared_distance(z[i], partner) / (2 * len(partner)))
        else:
            raise ValueError(scaling)
        distribution.append(_log_sum_exp(_dot(z[i], z[k]) / tau for k in range(len(z)) if k != i))
    return _mean(alignment) + lam * _mean(distribution)


def logsumexp_oracle(z, tau=0.5):
    """Chen Section C: the second term of Eq. (5), of the n features of one view."""
    z = _rows(z)
    terms = []
    for i in range(len(z)):
        terms.append(_log_sum_exp(_dot(z[i], z[k]) / tau for k in range(len(z)) if k != i))
    return _mean(terms)


def dcl_oracle(z1, z2, tau=0.5):
    """BCL Eq. (14) with tau = 1/alpha, mean over both views as anchors; negatives cross-view."""
    z1, z2 = _rows(z1), _rows(z2)
    terms = []
    for anchors, others in ((z1, z2), (z2, z1)):
        for i in range(len(anchors)):
            negatives = [_dot(anchors[i], others[j]) / tau for j in range(len(others)) if j != i]
            terms.append(_log_sum_exp(negatives) - _dot(anchors[i], others[i]) / tau)
    return _mean(terms)


def balanced_contrastive_oracle(z1, z2, alpha=4.0, lam=2.0):
    """BCL Eq. (17): 2(n-1) negatives of both views, mean over the 2n anchors."""
    z, positive_of = _both_views(_rows(z1), _rows(z2))
    terms = []
    for i in range(len(z)):
        negatives = []
        for j in range(len(z)):
            if j not in (i, positive_of[i]):
                negatives.append(alpha * _dot(z[i], z[j]))
        terms.append(-_dot(z[i], z[positive_of[i]]) + lam * _log_sum_exp(negatives) / alpha)
    return _mean(terms)


def generalized_nt_xent_oracle(z1, z2, alpha=2.0, lam=2.0):
    """BCL Eq. (17) with the positive in the sum as well (section 6): 2n - 1 terms."""
    z, positive_of = _both_views(_rows(z1), _rows(z2))
    terms = []
    for i in range(len(z)):
        logits = [alpha * _dot(z[i], z[j]) for j in range(len(z)) if j != i]
        terms.append(-_dot(z[i], z[positive_of[i]]) + lam * _log_sum_exp(logits) / alpha)
    return _mean(terms)


def sliced_wasserstein_oracle(h, prior_samples, directions):
    """Chen Algorithm 1, divided by n d' in place of the printed d d'."""
    h, prior_samples = _rows(h), _rows(prior_samples)
    columns = np.asarray(directions, dtype=np.float64).T.tolist()
    squares = []
    for column in columns:
        projected = sorted(_dot(row, column) for row in h)
        wanted = sorted(_dot(row, column) for row in prior_samples)
        for i in range(len(projected)):
            squares.append((projected[i] - wanted[i]) ** 2)
    return _mean(squares)


def _neighbour_weights(count):
    """For each i, its neighbours j with weight 1/2, or 1 where there is but one."""
    weights = []
    for i in range(count):
        neighbours = [j for j in (i - 1, i + 1) if 0 <= j < count]
        weights.append([(j, 1 / len(neighbours)) for j in neighbours])
    return weights


def quick_thought_contrastive_oracle(f, g, tau):
    """W&I B.3: cross-entropy of f_i over all g_j (its own included) to its neighbours."""
    f, g = _rows(f), _rows(g)
    terms = []
    for i, neighbours in enumerate(_neighbour_weights(len(f))):
        logits = [_dot(f[i], g_j) / tau for g_j in g]
        normalizer = _log_sum_exp(logits)
        terms.append(math.fsum(weight * (normalizer - logits[j]) for j, weight in neighbours))
    return _mean(terms)


def quick_thought_align_oracle(f, g, alpha):
    """W&I B.3, with the weights of the contrastive loss: 1/2 for each neighbour, 1 at the ends."""
    f, g = _rows(f), _rows(g)
    terms = []
    for i, neighbours in enumerate(_neighbour_weights(len(f))):
        for j, weight in neighbours:
            terms.append(weight * _squared_distance(f[i], g[j]) ** (alpha / 2))
    return math.fsum(terms) / len(f)


def quick_thought_uniform_oracle(f, g, t):
    """W&I B.3, each encoder with the log of Eq. (9): the sum of the two, not their mean."""
    total = 0.0
    for features in (_rows(f), _rows(g)):
        exponents = []
        for i in range(len(features)):
            for j in range(i + 1, len(features)):
                exponents.append(-t * _squared_distance(features[i], features[j]))
        total += _log_mean_exp(exponents)
    return total


def numeric_slope(oracle, arrays, directions, eps=1e-6):
    """Central difference in float64 of oracle(*arrays) with arrays moved along directions."""
    arrays = [np.asarray(a, dtype=np.float64) for a in arrays]
    directions = [np.asarray(d, dtype=np.float64) for d in directions]
    ahead = oracle(*(a + eps * d for a, d in zip(arrays, directions, strict=True)))
    behind = oracle(*(a - eps * d for a, d in zip(arrays, directions, strict=True)))
    return (ahead - behind) / (2 * eps)
