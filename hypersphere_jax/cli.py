"""The command line of hypersphere_jax. `python run.py VERB --help` explains a verb."""

import dataclasses
import functools
import inspect
import itertools
import logging
import os
import platform
import re
import sys
import typing
from importlib import metadata
from pathlib import Path
from typing import Any

import tyro

from hypersphere_jax import __version__, memory
from hypersphere_jax import configs as C
from hypersphere_jax.configs.base import check_values, did_you_mean, flag_of, program
from hypersphere_jax.terminal import LONGEST, printable, say
from hypersphere_jax.verbs import VERBS, Part, experiments_for, in_repository


class _Notes(logging.Handler):
    """Prints what the package logs as lines of its own on stderr, each once."""

    def __init__(self) -> None:
        super().__init__()
        self._said: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        begins = "warning: " if record.levelno >= logging.WARNING else ""
        message = _with_flags(record.getMessage())
        line = begins + message.replace(f"{os.getcwd()}/", "")  # as runs name data
        if line not in self._said:
            self._said.add(line)
            say(printable(line, LONGEST), sys.stderr)


HELP = ("--help", "-h")
# An option in a message, such as `epochs=3`, `epochs=` or `force=True`; not in a path or a call.
_OPTION = re.compile(r"(?<![\w./'\"=-])([a-z]\w*)=(?!…)(True\b|False\b|(?=[^\s,;:).]|\.\S))?")
# Those that train; of `reproduce` the settings are the papers'.
WITH_FILE = ("pretrain", "finetune", "quickstart")


def _with_flags(message: str) -> str:
    """A message with options as flags: `--epochs 3` for `epochs=3`."""

    def flag(match: re.Match) -> str:
        name, value = match.groups()
        flag = flag_of(f"no_{name}" if value == "False" else name)
        return f"{flag} " if value == "" else flag

    return _OPTION.sub(flag, message)


def main(arguments: list[str]) -> int:
    """Carries out a command line, without the program's name; returns its exit status."""
    if arguments[:1] == ["help"]:  # help VERB
        arguments = [*arguments[1:], "--help"]
    name = arguments[0] if arguments else "--help"
    if name not in (*HELP, "--version", *VERBS):
        hint = did_you_mean(name, VERBS) or f"; the verbs are {', '.join(VERBS)}"
        say(f"error: no verb {name!r}{hint}", sys.stderr)
        return 2

    silence_orbax()
    logger, notes = logging.getLogger("hypersphere_jax"), _Notes()
    before = logger.level, logger.propagate
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(notes)
    try:
        if name in HELP:
            say(_overview())
        elif name == "--version":
            print(f"hypersphere_jax {__version__}, jax {metadata.version('jax')}, ", end="")
            print(f"Python {platform.python_version()}")
        else:
            VERBS[name](lambda target: _parse(target, name, arguments[1:]))
    except C.Stopped as stopped:
        say(str(stopped), sys.stderr)
    except C.UserError as error:
        say(printable(f"error: {_with_flags(str(error))}", LONGEST), sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of a pipe has closed it, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (MemoryError, RuntimeError) as error:
        if not memory.is_used_up(error):
            raise
        kept = "what was saved is kept"
        say(f"error: {memory.described(error)}: {memory.ADVICE}; {kept}", sys.stderr)
        return 2
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        what = "correct that and run the same command again; what was saved is kept"
        say(printable(f"error: {error.strerror or error}{where}: {what}", LONGEST), sys.stderr)
        return 2
    finally:
        logger.removeHandler(notes)
        logger.setLevel(before[0])
        logger.propagate = before[1]
    return 0


def _about(verb: str) -> str:
    """What a verb does, in one line."""
    return (VERBS[verb].__doc__ or "").splitlines()[0]


def _overview() -> str:
    """All verbs."""
    return "\n".join([*_usage("VERB"), *(f"  {verb:<14}{_about(verb)}" for verb in VERBS)])


def _usage(words: str) -> list[str]:
    called = f"{program()} {words}"
    return [f"usage: {called} [options]", f"       {called} --help", ""]


def _overview_of(verb: str, parts: dict[str, Part]) -> str:
    """All parts of a verb."""
    lines = [*_usage(f"{verb} PART"), _about(verb), ""]
    return "\n".join([*lines, *(f"  {name:<14}{part.about}" for name, part in parts.items())])


def silence_orbax() -> None:
    """Orbax's failed reads and saves raise: here it does not log them, with tracebacks, as well."""
    for name in ("absl", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    show = sys.unraisablehook

    # After a failure Orbax's threads report to an event loop that it closed.
    def hook(unraisable: Any) -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            show(unraisable)

    sys.unraisablehook = hook


def _parse(target: Any, verb: str, arguments: list[str]) -> Any:
    """A dataclass filled, or a function (of a dict: the named one) called, with the arguments.

    Of verbs that train, what a file of options has replaces the defaults; so does, of `pretrain`,
    an experiment that is named by the first argument; without these, what the run that `--name`
    names was made with. Flags replace all of them. What the options ask of JAX's devices is set up.
    """
    if isinstance(target, dict):
        if set(HELP) & set(arguments[:1]):
            say(_overview_of(verb, target))
            raise SystemExit(0)
        part, *arguments = arguments or [""]
        hint = did_you_mean(part, target) or f"; name one of {', '.join(target)}"
        wrong = f"{verb}: no {part!r}{hint}" if part else f"{verb}: {hint.strip('; ')}"
        C.require(part in target, wrong)
        target, verb = target[part].load(), f"{verb} {part}"
    # Here, as of an empty one `Path` makes the folder that we are in.
    for before, argument in itertools.pairwise([verb, *arguments]):
        C.require(argument != "", f"{before} '': give a value in place of the empty one")
    prog = f"{program()} {verb}"
    options: dict[str, Any] = {}
    if verb in WITH_FILE:
        default = None
        if verb == "pretrain" and arguments and not arguments[0].startswith("-"):
            name, *arguments = arguments
            prog, default = f"{prog} {name}", experiments_for(f"pretrain {name}").find(name)
        if not set(HELP).isdisjoint(arguments):
            options["description"] = _description(verb, target, named=default is not None)
        file, arguments = _option("--config", arguments)
        if file is not None:
            from hypersphere_jax.configs.from_file import blank, with_file

            default = with_file(default or blank(target, tyro.MISSING), file)
        elif default is None and verb != "quickstart":
            default = _recorded(verb, arguments)
        options |= {} if default is None else {"default": default}
    options["config"] = (tyro.conf.OmitArgPrefixes, tyro.conf.SuppressFixed)
    result = tyro.cli(_later(target), args=arguments, prog=prog, **options)
    result = result() if isinstance(result, functools.partial) else result
    runtime = getattr(result, "runtime", result)
    devices, deterministic = (getattr(runtime, n, None) for n in ("devices", "deterministic"))
    if devices is not None or deterministic:
        from hypersphere_jax.training.sharding import prepare

        prepare(devices, deterministic)
    return result


def _description(verb: str, target: Any, named: bool) -> str:
    """Of a verb that trains; `named` is an experiment that is named already."""
    lines = [target.__doc__.split("\n\n")[0]]
    if verb == "pretrain" and not named and in_repository():
        names = ", ".join(experiments_for(verb).PRETRAIN)
        lines.append(
            "The first argument may be an EXPERIMENT, whose settings are then the defaults of all "
            f"options: {names}."
        )
    lines.append(
        "`--config FILE` takes options from a file, YAML or JSON as a run's config.json; flags "
        "override it."
    )
    if verb != "quickstart":
        lines.append(
            "Without these, if there is a run of that `--name`, its options are the defaults."
        )
    return " ".join(lines)


def _later(target: Any) -> Any:
    """Of a function, the one with the same arguments that gives the call; else the target."""
    if not inspect.isfunction(target):
        return target

    @functools.wraps(target)
    def later(*arguments: Any, **options: Any) -> Any:
        given = inspect.signature(target).bind(*arguments, **options).arguments
        check_values(given, typing.get_type_hints(target, include_extras=True))
        return functools.partial(target, *arguments, **options)

    return later


def _recorded(verb: str, arguments: list[str]) -> Any:
    """The options of the run that `--name` names, as its last session had them; None: no run."""
    (name, _), (runs_dir, _) = (_option(flag, arguments) for flag in ("--name", "--runs-dir"))
    runs_dir = runs_dir or C.PretrainConfig.runs_dir
    if name is None or not (file := Path(runs_dir, name, "config.json")).is_file():
        return None
    from hypersphere_jax import finetune
    from hypersphere_jax.training import run_dir

    say(f"{name}: options as recorded in {file}", sys.stderr)
    read = run_dir.read_config if verb == "pretrain" else finetune.recorded
    return dataclasses.replace(read(file.parent), name=name, runs_dir=runs_dir)


def _option(flag: str, arguments: list[str]) -> tuple[str | None, list[str]]:
    """The value of a flag among arguments, and the others; None where it is not given."""
    value, others, left = None, [], iter(arguments)
    for argument in left:
        given, equals, after = argument.partition("=")
        if given.replace("_", "-") != flag:
            others.append(argument)
            continue
        C.require(value is None, f"{flag} is given twice: give it once")
        value = after if equals else next(left, "")
        C.require(bool(value) and not value.startswith("--"), f"{flag}: give a value after it")
    return value, others
