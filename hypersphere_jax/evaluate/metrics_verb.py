"""From a run's checkpoint, or a file of features, to metrics and a JSON file."""

import logging
import math
from pathlib import Path
from typing import Any

from hypersphere_jax.config import MetricsConfig, UserError, require
from hypersphere_jax.evaluate import geometry, metrics
from hypersphere_jax.evaluate.metrics_inputs import Material, of_file, of_run
from hypersphere_jax.files import write_json
from hypersphere_jax.train import run_folder, sharding

logger = logging.getLogger("hypersphere_jax")

# The rank takes min(n, d) d numbers in float64, and time with min(n, d)^2 max(n, d): beyond this
# many it is not computed unless asked for.
RANK_ENTRIES = 2**25


def measure(config: MetricsConfig) -> dict[str, Any]:
    """Alignment, uniformity and geometry: of a checkpoint's output over a split, or of a file.

    Of a checkpoint, alignment is over pairs of random views of each image, all else over the images
    as they are; the result also goes into the run's `eval/`. Of a file it goes where the config
    says.

    Raises:
      UserError: for features that are not finite or have no unit norm, and for parts whose data
        are not there.
    """
    devices = sharding.local_devices(config.devices)
    about, found = of_file(config) if config.of_file else of_run(config, devices)
    chosen = _chosen(config, found)
    result = {
        **about,
        "protocol": "metrics",
        **found.summary(config.alpha, config.t, devices),
    }
    for part in chosen:
        result |= _known(PARTS[part](config, found, devices))
    result["seed"] = config.seed
    out, _ = places(config)
    if config.of_file:
        if out is not None:
            write_json(out, result)
        return result
    try:
        write_json(out, result)
    except OSError as error:
        logger.warning("the result is not kept: %s", error)
    return result


def places(config: MetricsConfig) -> tuple[Path | None, Path | None]:
    """Where the result goes, and where its picture does; None: nowhere.

    Of a run, options other than the defaults are in the name: no result replaces another.
    """
    if config.of_file:
        return config.out, config.figure
    standard = MetricsConfig(config.run)
    name = f"metrics-{config.split}"
    for key in ("step", "alpha", "t", "seed"):
        value = getattr(config, key)
        name += f"-{key}{value}" if value != getattr(standard, key) else ""
    if config.parts is not None:
        name += "-" + ("+".join(sorted(set(config.parts))) or "only")
    folder = run_folder.find(config.run)
    return folder / "eval" / f"{name}.json", folder / "figures" / f"{name}.png"


def lines(result: dict[str, Any]) -> list[tuple[str, float, float | None, float | None]]:
    """What one reads of the parts of a result.

    Returns:
      Rows of name, value, standard error, and the value of uniform features where it is known.
    """
    n, d = result["n"], result["d"]
    # The Kolmogorov-Smirnov distance of n points from their own distribution, on average.
    chance = math.sqrt(math.pi / 2 / n) * math.log(2)
    optimum = result["uniform_optimum"]
    rows = (
        ("L_uniform of f", "uniform_f", optimum / 2),
        ("L_uniform of g", "uniform_g", optimum / 2),
        ("L_uniform of the views, mean", "uniform_views", optimum),
        ("L_uniform by class, mean", "uniform_by_class_mean", optimum),
        ("effective rank", "effective_rank", float(d)),
        ("participation ratio", "participation_ratio", float(d)),
        ("distance of positive pairs, mean", "pair_distance", None),
        ("projections: sliced Wasserstein", "sliced_wasserstein", 0.0),
        ("projections: Kolmogorov-Smirnov", "projection_ks_sphere", chance),
        ("prototype representation bias", "prototype_bias", None),
    )
    return [
        (name, result[key], result.get(f"{key}_standard_error"), uniform)
        for name, key, uniform in rows
        if key in result
    ]


# The parts: from config, material and devices to entries of the result.


def _rank(config: MetricsConfig, material: Material, devices: list) -> dict[str, Any]:
    found = geometry.effective_rank(material.x)
    return found._asdict() | {"singular_values": found.singular_values.tolist()}


def _classes(config: MetricsConfig, material: Material, devices: list) -> dict[str, Any]:
    groups = geometry.class_rows(material.labels, len(material.x), material.labels_name)
    found = geometry.uniformity_by_class(material.x, groups, config.t, devices)
    names = material.class_names
    return {
        "uniform_by_class_mean": found.mean,
        "classes": [names[label] if names else label for label in found.labels],
        "n_by_class": found.sizes,
        "uniform_by_class": [estimate.value for estimate in found.uniform],
        "uniform_by_class_standard_error": [e.standard_error for e in found.uniform],
    }


def _distances(config: MetricsConfig, material: Material, devices: list) -> dict[str, Any]:
    found = geometry.pair_distances(*material.pairs)
    return {
        "pair_distance": found.mean.value,
        "pair_distance_standard_error": found.mean.standard_error,
        "pair_distance_counts": found.counts.tolist(),
    }


def _projections(config: MetricsConfig, material: Material, devices: list) -> dict[str, Any]:
    found = geometry.projections(material.x, seed=config.seed)
    return {
        "sliced_wasserstein": float(found.sliced_wasserstein.mean()),
        "projection_ks_sphere": float(found.ks_sphere.mean()),
        "projection_ks_normal": float(found.ks_normal.mean()),
        "projection_half_width": found.half_width,
        "projections": [
            {
                "mean": float(found.mean[k]),
                "variance": float(found.variance[k]),
                "sliced_wasserstein": float(found.sliced_wasserstein[k]),
                "ks_sphere": float(found.ks_sphere[k]),
                "ks_normal": float(found.ks_normal[k]),
                "counts": found.counts[k].tolist(),
            }
            for k in range(len(found.counts))
        ],
    }


def _views(config: MetricsConfig, material: Material, devices: list) -> dict[str, Any]:
    found = [metrics.uniformity(side, config.t, devices=devices) for side in material.pairs]
    return {"uniform_views": (found[0].value + found[1].value) / 2}


def _prototype(config: MetricsConfig, material: Material, devices: list) -> dict[str, Any]:
    found, n = material.prototype()
    return {
        "prototype_bias": found.value,
        "prototype_bias_standard_error": found.standard_error,
        "prototype_bias_n": n,
    }


PARTS = {
    "rank": _rank,
    "classes": _classes,
    "distances": _distances,
    "projections": _projections,
    "views": _views,
    "prototype": _prototype,
}
ON_REQUEST = ("views", "prototype")


def _chosen(config: MetricsConfig, material: Material) -> list[str]:
    """The parts to compute.

    Raises:
      UserError: when one that was asked for cannot be.
    """
    n, d = material.x.shape
    obstacles = {
        "rank": None,
        "projections": None if d >= 2 else "features have one dimension only",
        "distances": None if material.pairs else "there are no positive pairs: give --pairs",
        "classes": "there are no labels" + (": give --labels" if config.of_file else ""),
    }
    if material.labels is not None:
        try:
            geometry.class_rows(material.labels, n, material.labels_name)
            obstacles["classes"] = None
        except UserError as error:
            # Who gives labels wants them used.
            if config.of_file:
                raise
            obstacles["classes"] = str(error)
    obstacles |= {"views": obstacles["distances"], "prototype": obstacles["classes"]}
    if config.parts is None:
        if min(n, d) * d > RANK_ENTRIES:
            obstacles["rank"] = "takes long here: --parts rank"
            logger.warning("the rank of %d x %d features is left out: --parts rank", n, d)
        return [part for part in PARTS if part not in ON_REQUEST and obstacles[part] is None]
    for part in config.parts:
        require(obstacles[part] is None, f"--parts {part}: {obstacles[part]}")
    return [part for part in PARTS if part in config.parts]


def _known(values: dict[str, Any]) -> dict[str, Any]:
    """What is not known (NaN) is null in a JSON file."""

    def plain(value):
        if isinstance(value, list):
            return [plain(item) for item in value]
        return None if value != value else value

    return {key: plain(value) for key, value in values.items()}
