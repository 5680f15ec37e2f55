"""Evaluate features of any encoder: alignment, uniformity, rank, retrieval, linear probe, k-NN.

python examples/probe_features.py
"""

import numpy as np
from sklearn.datasets import load_digits

import hypersphere_jax as hj


def main() -> None:
    images, labels = load_digits(return_X_y=True)
    # Replace with your encoder: random projections of the pixels, [1797, 32], unit norm.
    directions = np.random.default_rng(0).standard_normal((64, 32))
    features = np.asarray(hj.l2_normalize((images - images.mean(0)) @ directions))

    # Positive pairs are two images of the same class.
    order = np.argsort(labels, kind="stable")
    is_pair = np.diff(labels[order]) == 0
    result = hj.measure(features[order[:-1]][is_pair], features[order[1:]][is_pair])
    for name in ("align", "uniform", "uniform_optimum", "effective_rank"):
        print(f"{name}: {result[name]:.3f}")

    retrieval = hj.retrieval_scores(features, labels)  # among all other images
    print(f"recall@1: {retrieval['recall_at_1']:.1f}%, MAP@R: {retrieval['map_at_r']:.1f}%")
    print(f"RankMe: {hj.rankme(features):.2f} of {features.shape[1]} dimensions")

    split = features[:1400], labels[:1400], features[1400:], labels[1400:]
    linear = hj.linear_probe(*split)
    nearest = hj.knn_probe(*split, k=5)
    low, high = linear["top1_interval"]
    print(f"linear: {linear['top1']:.1f}% (95%: {low:.1f} to {high:.1f})")
    print(f"5-NN: {nearest['top1']:.1f}%")


if __name__ == "__main__":
    main()
