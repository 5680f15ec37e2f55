"""Recipes as data: those of the papers, in a table."""

import pytest

from hypersphere_jax.augment import RECIPES, find

IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
STL10 = {"mean": (0.4409, 0.4279, 0.3868), "std": (0.2683, 0.2610, 0.2687)}
CIFAR10 = {"mean": (0.4914, 0.4822, 0.4465), "std": (0.2470, 0.2435, 0.2616)}
DIGITS = {"mean": (0.3053,), "std": (0.3760,)}

STEPS = {
    "crop.08": ("random_resized_crop", {"scale": (0.08, 1.0), "ratio": (3 / 4, 4 / 3)}),
    "crop.2": ("random_resized_crop", {"scale": (0.2, 1.0), "ratio": (3 / 4, 4 / 3)}),
    "flip": ("random_horizontal_flip", {"p": 0.5}),
    "gray": ("random_grayscale", {"p": 0.2}),
    "blur": ("gaussian_blur", {"sigma": (0.1, 2.0), "p": 0.5}),
    "blur-of-a-tenth": ("gaussian_blur", {"sigma": (0.1, 2.0), "p": 0.5, "kernel": 0.1}),
    "cutout": ("cutout", {"side": 0.5, "value": IMAGENET["mean"]}),
    "rotation": ("random_rotation", {}),
    "affine": ("random_affine", {"degrees": 15.0, "scale": (0.85, 1.15), "shift": 0.125}),
    "intensity": ("random_intensity", {"scale": (0.7, 1.3)}),
    "middle": ("resize", {"factor": 1.0}),
    "square": ("center_crop", {}),
} | {
    name: ("color_jitter", {**dict.fromkeys(("brightness", "contrast", "saturation"), b), **rest})
    for name, b, rest in (
        ("jitter-hue.4", 0.4, {"hue": 0.4, "p": 1.0}),
        ("jitter", 0.4, {"hue": 0.1, "p": 0.8}),
        ("strong-jitter", 0.8, {"hue": 0.2, "p": 0.8}),
    )
}
MOCO_V2 = "crop.2 jitter gray blur flip"
PAPERS = {  # the training view in order, the normalization, the evaluation's share of the image
    "stl10": ("crop.08 flip jitter-hue.4 gray", STL10, 70 / 64),
    "cifar10": ("crop.08 flip jitter-hue.4 gray", CIFAR10, 1.0),
    "nyu_depth": ("crop.08 flip jitter-hue.4 gray", IMAGENET, 1.0),
    "moco": ("crop.2 gray jitter-hue.4 flip", IMAGENET, 256 / 224),
    "moco_v2": (MOCO_V2, IMAGENET, 256 / 224),
    "simclr_imagenet": ("crop.08 flip strong-jitter gray blur-of-a-tenth", None, 256 / 224),
    "simclr_cifar": ("crop.08 flip jitter gray", None, 1.0),
    "balanced_imagenet": (MOCO_V2, IMAGENET, 256 / 224),
    "balanced_cifar": ("crop.08 flip jitter gray", IMAGENET, 1.0),
    "balanced_no_blur": ("crop.2 jitter gray flip", IMAGENET, 256 / 224),
    "balanced_no_color": ("crop.2 blur flip", IMAGENET, 256 / 224),
    "balanced_cutout": (f"{MOCO_V2} cutout", IMAGENET, 256 / 224),
    "balanced_rotation": (f"{MOCO_V2} rotation", IMAGENET, 256 / 224),
    "digits": ("affine intensity", DIGITS, 1.0),
    "none": ("middle square", None, 1.0),
}


def test_recipes_are_those_of_the_papers():
    assert RECIPES.keys() == PAPERS.keys()
    for name, (steps, statistics, factor) in PAPERS.items():
        first = () if name in ("digits", "none") else (("rgb", {}),)
        last = (("normalize", statistics),) if statistics else ()
        fit = (("resize", {"factor": factor}), ("center_crop", {}))
        train, evaluate = RECIPES[name]
        assert train == (*first, *(STEPS[step] for step in steps.split()), *last), name
        assert evaluate == (*first, *fit, *last), name


def test_crop_and_flip_alone():
    kept, ends = [STEPS[s] for s in ("crop.08", "crop.2", "flip", "affine")], ("rgb", "normalize")
    for name in ("moco_v2", "simclr_cifar", "balanced_cutout", "digits"):
        whole, part = RECIPES[name], find(f"{name}:crop_flip")
        assert part.train == tuple(s for s in whole.train if s in kept or s[0] in ends), name
        assert part.evaluate == whole.evaluate, name
    assert find("none:crop_flip") == find("none")
    with pytest.raises(ValueError, match=f"'slt10', known: {', '.join(RECIPES)}; .*'stl10'"):
        find("slt10:crop_flip")
