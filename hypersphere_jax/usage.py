"""The short page of `VERB --help`: what is used most. `--help-all` has all options."""

import dataclasses
import re
import shutil
import textwrap
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from hypersphere_jax.config.flags import Flag, flags_of

EXPERIMENT = "moco_cifar10/align_uniform"
LEFT = 29  # columns of an option's name
NARROW, WIDEST = 70, 100  # below NARROW columns the text of an option is under its name


class Page(NamedTuple):
    """What the short page of a verb shows."""

    usage: str  # after the verb
    examples: tuple[str, ...]  # without the program
    # Groups of flags with their text; None: the beginning of the field's help.
    options: Mapping[str, Mapping[str, str | None]]


DEVICES = {"devices": "How many to use; by default all"}
TRAINED = {
    "name": "Name of the run; one that is there goes on",
    "runs-dir": None,
    "seed": "Of all that is random",
    **DEVICES,
    "eval-every-epochs": "Epochs between evaluations; by default none",
    "config": "Options in a file, YAML or JSON; flags override it",
}
DATA = {
    "data": "`digits`; a folder, .zip, .npz or .npy file of images; text; or a name of `data list`",
    "data-dir": "Folder of a data set with a name",
    "recipe": "Augmentation, such as `moco_v2`; by default what suits the data",
}
SHOWN = {
    "data-dir": DATA["data-dir"],
    "channels": "1: grey images; 3: RGB; by default as they are",
    "fraction": "Share of the training images to keep",
    "bad-images": "What to do about images that cannot be read",
}
PAGES = {
    "pretrain": Page(
        "[EXPERIMENT] [options]",
        (
            "pretrain --data photos.zip --model resnet18 --image-size 64",
            "pretrain --name simclr --loss nt_xent --head simclr2",
            f"pretrain {EXPERIMENT} --data-dir DATA",
        ),
        {
            "run": TRAINED,
            "data": DATA,
            "encoder": {
                "model": "Network",
                "dim": "Dimension of the output",
                "head": "From the backbone to the output",
                "image-size": "Side of the images, pixels; by default as the data",
            },
            "loss": {
                **dict.fromkeys(("align-weight", "uniform-weight")),
                "contrastive-weight": "Weight of the contrastive loss",
                "contrastive-tau": None,
                "loss": "`weighted`: the sum of those above; else this one instead",
                "loss-tau": "Temperature of `--loss nt_xent` and others",
                "queue-size": "Above 0: Momentum Contrast, with so many keys",
            },
            "optimizer": {
                **dict.fromkeys(("epochs", "batch-size")),
                "optimizer": "Rule",
                **dict.fromkeys(("learning-rate", "weight-decay")),
            },
        },
    ),
    "finetune": Page(
        "RUN [options]",
        (
            "finetune mine --fraction 0.01",
            "finetune mine --fraction 0.1 --learning-rates 0.01 0.05 0.1",
            "finetune mine --step 0 --name supervised",
        ),
        {
            "encoder": {"step": None, "layer": "Of the classifier; by default before the head"},
            "run": TRAINED,
            "training": {
                "fraction": None,
                "learning-rates": "For 256 images; of several the best on held-out labels is taken",
                **dict.fromkeys(("epochs", "batch-size", "weight-decay")),
                "recipe": "Augmentation; by default crop and flip of the run's",
                "data-dir": None,
            },
        },
    ),
    "probe": Page(
        "RUN|FEATURES ... [options]",
        (
            "probe mine --layers output backbone --k 1 5 200",
            "probe runs --sort valid --out sweep.csv",
            "probe features.npz --protocols lbfgs --folds 5",
        ),
        {
            "features": {
                **dict.fromkeys(("layers", "pool")),
                "step": "Checkpoint; by default the newest, 0 is the random initialization",
                "all-steps": None,
                "data": "Of sentence encoders: what to classify, such as `mr`",
                "data-dir": None,
            },
            "protocols": {
                "protocols": "`lbfgs` (logistic regression), `knn`; and others, with minibatches",
                "k": "Neighbours of k-NN, one number or several",
                "folds": "Choose hyper-parameters by so many folds; by default on a held-out part",
                "seed": "Of held-out parts, folds and minibatches",
            },
            "results": {"sort": "Column to sort by", "out": None, **DEVICES},
        },
    ),
    "import-torch": Page(
        "FILE --name NAME [options]",
        (
            "import-torch resnet50.pth --name resnet50 --data cifar10",
            "import-torch moco.pth.tar --name moco --data photos.zip",
        ),
        {
            "run": {"name": None, "runs-dir": None},
            "encoder": {
                "prefix": "Of the encoder's names in the file; by default it is detected",
                "fresh-head": "Replace the file's head by a random one",
                "image-size": "Side of the images, pixels",
            },
            "evaluated on": DATA,
        },
    ),
    "quickstart": Page(
        "[options]",
        ("quickstart", "quickstart --seeds 0"),
        {
            "run": {
                "out": "Folder of runs, pictures and page; what is finished there is kept",
                "runs-dir": None,
                "config": TRAINED["config"],
            },
            "encoders": {
                "seeds": None,
                "choose": "Try learning rates on held-out training images instead",
            },
        },
    ),
    "reproduce": Page(
        "[ITEM] [options]",
        (
            "reproduce",
            "reproduce chen/figureB1",
            "reproduce chen/figureB1 --scale laptop --dry-run",
        ),
        {
            "what": {
                "scale": "Digits or CIFAR-10 and a narrow encoder, on 2 cores; or the paper's "
                "data and settings, on GPUs",
                **dict.fromkeys(("row", "only")),
            },
            "plan": dict.fromkeys(("dry-run", "measure", "yes")),
            "run": {
                "jobs": "Processes that train at a time",
                "vmapped": "Train many encoders in one program",
                "retry": None,
            },
            "folders": {
                "data-dir": "Of the images or text",
                "out": "Of what is reproduced; by default RUNS_DIR/reproduce",
                "runs-dir": None,
            },
        },
    ),
    "data inspect": Page(
        "[DATA] [options]",
        ("data inspect photos.zip", "data inspect cifar10 --data-dir DATA"),
        {
            "data": SHOWN | {"folds": "Folds of the training images, one of them held out"},
            "results": {"sample": "Images to decode of each split; 0: all", "out": "As JSON"},
        },
    ),
    "data show": Page(
        "[DATA] [options]",
        ("data show photos.zip --image-size 64", "data show cifar10 --recipe moco_v2"),
        {
            "data": SHOWN,
            "sheet": {
                "recipe": DATA["recipe"],
                "image-size": "Side of the views, pixels; by default as the images",
                "count": "Images, evenly spread over the training split",
                "seed": "Of the views",
                "out": "PNG; by default runs/data/NAME-RECIPE.png",
            },
        },
    ),
}


def short_help(
    program: str,
    verb: str,
    about: str,
    target: type | Callable,
    default: Any,
    experiments: bool = True,
) -> str:
    """The short page of a verb, as wide as the terminal, or 80 columns.

    Args:
      program: how the command line is called.
      verb: a key of `PAGES`.
      about: one sentence, what it does.
      target: the config that it takes.
      default: a config whose values are the defaults. None: the class's own.
      experiments: whether there are any, to name one as an example.
    """
    page, width = PAGES[verb], min(WIDEST, shutil.get_terminal_size().columns)
    by_name = {flag.flag: flag for flag in flags_of(target, default)}
    usage = page.usage if experiments else page.usage.removeprefix("[EXPERIMENT] ")
    lines = [f"usage: {program} {verb} {usage}", "", *textwrap.wrap(about, width), ""]
    for example in page.examples:
        if not experiments and example.startswith(f"{verb} {EXPERIMENT}"):
            continue
        parts = textwrap.wrap(f"{program} {example}", width - 6, break_on_hyphens=False)
        lines.append("  " + " \\\n      ".join(parts))
    for title, options in page.options.items():
        lines += ["", f"{title}:"]
        for name, text in options.items():
            flag = by_name.get(f"--{name}", Flag(f"--{name}", (), str, None, "", False))
            lines += _option(flag, text, width)
    shown = {f"--{name}" for options in page.options.values() for name in options}
    rest = f"`{program} {verb} --help-all` shows all {len(shown | by_name.keys())} options."
    return "\n".join([*lines, "", *textwrap.wrap(rest, width, break_on_hyphens=False)])


def _option(flag: Flag, text: str | None, width: int) -> list[str]:
    if text is None:
        text = re.split(r"[.;] |\.$", flag.help)[0]
    if flag.choices and not any(f"`{choice}`" in text for choice in flag.choices[:2]):
        text += f": {', '.join(flag.choices)}"
    default = flag.default
    if isinstance(default, tuple):
        default = " ".join(map(str, default))
    if default is dataclasses.MISSING:
        text += " (required)"
    elif not (default is None or default is False or default == ""):
        text += f" ({default})"
    name, indent = f"  {flag.flag} {flag.metavar}".rstrip(), LEFT if width >= NARROW else 6
    lines = textwrap.wrap(text, width - indent, break_on_hyphens=False)
    lines = [" " * indent + line for line in lines]
    if width < NARROW or len(name) >= LEFT:
        return [name, *lines]
    return [name + lines[0][len(name) :], *lines[1:]]
