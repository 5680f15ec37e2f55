"""What the command line says to a wrong option: one line, with the right one where it is known."""

import contextlib
import dataclasses
import difflib
import io
import itertools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from hypersphere_jax.config import UserError
from hypersphere_jax.config.base import did_you_mean, plain
from hypersphere_jax.config.flags import Flag, flags_of

# Other names of verbs.
VERBS = {
    "train": "pretrain",
    **dict.fromkeys(("eval", "evaluate", "test", "linear", "linearprobe", "knn"), "probe"),
    **dict.fromkeys(("embed", "encode", "extract", "extractfeatures", "predict"), "features"),
    **dict.fromkeys(("download", "datasets", "prepare"), "data"),
    "list": "data list",
    **dict.fromkeys(("demo", "example"), "quickstart"),
    **dict.fromkeys(("import", "convert"), "import-torch"),
}
ITEMS = ("wang-isola/", "chen/", "balanced/")  # how names of what `reproduce` has begin
KIND_OF_DEVICE = "the kind of device is JAX's: JAX_PLATFORMS=cpu"
# Other names of options, and what to say: of lines that have the name, the first one whose options
# the verb has.
FLAGS = (
    ("lr base-lr", "--learning-rate"),
    ("lr base-lr learning-rate", "--learning-rates"),
    ("temperature temp tau t", "--contrastive-tau, or --loss-tau with a --loss"),
    ("alpha", "--align-alpha, or --loss-alpha with a --loss"),
    ("lam lambda", "--loss-lam"),
    ("batch bs b", "--batch-size"),
    ("wd", "--weight-decay"),
    ("arch backbone encoder net network", "--model"),
    ("images data data-path dataset input", "--images"),
    ("data-path dataset dataset-name images input root", "--data"),
    ("feature-dim feat-dim features embedding-dim emb-dim out-dim proj-dim", "--dim"),
    ("gpu gpus ngpu device num-devices n-devices", f"--devices, how many; {KIND_OF_DEVICE}"),
    ("num-workers j", "--workers"),
    ("epoch num-epochs n-epochs max-epochs", "--epochs"),
    ("steps max-steps num-steps", "--epochs; a step is one batch of --batch-size"),
    ("output-dir out-dir save-dir log-dir output", "--runs-dir (and --name, the folder in it)"),
    ("output output-file out-file save o", "--out"),
    ("opt", "--optimizer"),
    ("scheduler lr-schedule", "--schedule"),
    ("warmup", "--warmup-epochs"),
    ("aug augment augmentation augmentations transform", "--recipe"),
    ("img-size input-size crop-size resolution size", "--image-size"),
    ("projector projection-head proj-head", "--head"),
    ("queue moco-k", "--queue-size"),
    ("ema momentum-encoder moco-m", "--ema-decay"),
    ("amp fp16 bf16 precision mixed-precision", "--dtype bfloat16"),
    ("wandb logger", "--log-to wandb"),
    ("pretrained weights ckpt checkpoint", "--init-from"),
    ("ckpt checkpoint", "--step"),
    ("neighbors neighbours n-neighbors", "--k"),
    ("list", "leave it out: `reproduce` alone lists all, and --dry-run the runs of one"),
    ("continue", "leave it out: the same command continues a run by itself"),
)
COLOR = r"\x1b\[[\d;]*m"  # on a terminal
CONTRASTIVE = "--contrastive-weight 1 --align-weight 0 --uniform-weight 0"
# Likewise of values; "": any.
VALUES = {
    "--loss": {
        "simclr": "nt_xent",
        **dict.fromkeys(
            ("infonce", "contrastive", "moco"),
            f"{CONTRASTIVE}, for MoCo with --queue-size; SimCLR's is --loss nt_xent",
        ),
        **dict.fromkeys(
            ("alignuniform", "alignuniformity", "uniform", "align", "wangisola"),
            "leave it out: --align-weight and --uniform-weight are 1 by default",
        ),
        **dict.fromkeys(
            ("crossentropy", "ce", "supervised"),
            "--supervised-weight 1 --align-weight 0 --uniform-weight 0",
        ),
    },
    "--optimizer": {"adamw": "adam, whose --weight-decay is L2 in the gradient, not decoupled"},
    "--model": {"resnet": "resnet18", "alexnet": "small_alexnet", "cnn": "small_cnn"},
    "--head": {"mlp": "moco_v2 or simclr2", "simclr": "simclr2", "moco": "moco_v2"},
    "--protocols": {"linear": "lbfgs", "logistic": "lbfgs", "logisticregression": "lbfgs"},
    "--dtype": dict.fromkeys(("bf16", "fp16", "float16", "half"), "bfloat16"),
    "--schedule": {"multistep": "step"},
    "--resume": {"": "leave it out: the same command continues a run by itself"},
}


@contextlib.contextmanager
def one_line(command: str, target: type | Callable, arguments: Sequence[str]) -> Iterator[None]:
    """Makes a `UserError` of what tyro prints in a box about the arguments of a command.

    Args:
      command: the verb, such as "data show".
      target: the class that is filled, or the function that is called.
      arguments: that tyro parses.
    """
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            yield
    except SystemExit as stop:
        if not stop.code:  # of --help
            raise
        flags = flags_of(target)
        said, box = wrong_option(flags, arguments, command), re.sub(COLOR, "", printed.getvalue())
        if said is None:
            said = _missing(flags, arguments) if "Missing from" in box else _unboxed(box)
            said = _too_many(said, arguments) or f"{said}; options: {command} --help-all"
        raise UserError(f"{command}: {said}") from None


def verb(name: str, known: Iterable[str]) -> str:
    """A hint at the verb that is meant by a wrong name; empty where none is near."""
    meant = f"reproduce {name}" if name.startswith(ITEMS) else VERBS.get(plain(name))
    return f"; did you mean {meant!r}?" if meant else did_you_mean(name, known)


def wrong_option(flags: list[Flag], arguments: Sequence[str], command: str) -> str | None:
    """What is wrong with the first argument that is no option, or no value of its option."""
    known = {name: flag for flag in flags for name in (flag.flag, *flag.aliases)}
    known |= {f"--no-{flag.flag[2:]}": flag for flag in flags if flag.kind is bool}
    for argument, following in itertools.pairwise([*arguments, "--"]):
        if not argument.startswith("--"):
            continue
        name, equals, value = argument.partition("=")
        name = name.replace("_", "-").lower()
        if name not in known:
            return f"no option {argument.partition('=')[0]}{_meant(name[2:], known, command)}"
        flag, value = known[name], value if equals else following
        choices = ", ".join(flag.choices)
        values = VALUES.get(flag.flag, {})
        if flag.choices and value not in (*flag.choices, "None"):
            value = "" if value.startswith("--") else value
            hint = values.get(plain(value), values.get(""))
            hint = f"; {_advice(hint)}" if hint else did_you_mean(value, flag.choices, 0.8)
            return f"no {name} {value}".rstrip() + (hint or f"; it is one of {choices}")
        if flag.kind in (int, float) and value != "None" and not value.startswith("--"):
            try:
                flag.kind(value)
            except ValueError:
                what = "whole number" if flag.kind is int else "number"
                more = f"; {KIND_OF_DEVICE}" if flag.flag == "--devices" else ""
                return f"{name} {value}: must be a {what}{more}"
    return None


def _too_many(said: str, arguments: Sequence[str]) -> str | None:
    """What to do where the shell made several paths of one, as of `*.jpg`."""
    if not said.startswith("Unrecognized options:"):
        return None
    words = said.removeprefix("Unrecognized options:").replace(",", " ").split()
    extra = next((word for word in words if word in arguments), arguments[0])
    before = arguments[: arguments.index(extra)]
    flag = next((given for given in reversed(before) if given.startswith("--")), None)
    if flag not in ("--data", "--images", "--data-dir"):
        return None
    return f"{flag} takes one path: put {before[-1]} and {extra} into one folder, and name that"


def _missing(flags: list[Flag], arguments: Sequence[str]) -> str:
    """The option, or else the positional argument, that a command cannot do without."""
    given = {argument.partition("=")[0].replace("_", "-") for argument in arguments}
    needed = [flag for flag in flags if flag.default is dataclasses.MISSING]
    lacking = [f for f in needed if not f.positional and given.isdisjoint((f.flag, *f.aliases))]
    flag = next(iter(lacking or needed))
    name = flag.flag[2:].upper() if flag.positional else flag.flag
    return f"{name} is missing: {flag.help[:1].lower()}{flag.help[1:].rstrip('.')}"


def _meant(name: str, known: Collection[str], command: str) -> str:
    """A hint at the option that is meant by a wrong name, without its dashes."""
    for names, hint in FLAGS:
        if name in names.split() and set(re.findall(r"--[a-z-]+", hint)) <= {*known, "--name"}:
            return f"; {_advice(hint)}"
    near = difflib.get_close_matches(f"--{name}", known, n=3, cutoff=0.7)
    if near:
        return f"; did you mean {' or '.join(near)}?"
    return f"; all of them: {command} --help-all"


def _advice(hint: str) -> str:
    return hint if hint.startswith("leave") else f"take {hint}"


def _unboxed(text: str) -> str:
    """What tyro says in a box, of ASCII or not, between its title and the first line across."""
    title = r"\s*╭.*|[^\n]*\n *-+ *"
    lines = re.sub(f"^(?:{title})\n", "", text, count=1).splitlines()
    body = itertools.takewhile(lambda line: re.search(r"\w", line), lines)
    return " ".join(line.strip("│ ") for line in body).rstrip(".")
