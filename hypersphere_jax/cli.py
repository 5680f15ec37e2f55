"""The command line of hypersphere_jax. `python run.py VERB --help` explains a verb."""

import contextlib
import dataclasses
import functools
import importlib
import inspect
import logging
import os
import platform
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import tyro

from hypersphere_jax import __version__, hints, usage
from hypersphere_jax import config as C
from hypersphere_jax.config.base import did_you_mean, program
from hypersphere_jax.terminal import say


class _Notes(logging.Handler):
    """Prints what the package logs as lines of its own on stderr, each once."""

    def __init__(self) -> None:
        super().__init__()
        self._said: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        begins = "warning: " if record.levelno >= logging.WARNING else ""
        line = begins + record.getMessage().replace(f"{os.getcwd()}/", "")  # as runs name data
        if line not in self._said:
            self._said.add(line)
            say(line, sys.stderr)


class Part(NamedTuple):
    """A part of a verb, such as `data show`: its function is imported when it is asked for."""

    module: str
    function: str
    about: str

    def load(self) -> Callable:
        return getattr(importlib.import_module(self.module), self.function)


def quickstart(parse: Callable) -> None:
    """Train, evaluate and draw encoders of digits, in minutes: the first thing to run."""
    _need_repository("quickstart")
    from experiments.options import QuickstartConfig

    config = parse(QuickstartConfig)
    from experiments import quickstart

    quickstart.main(config, _command())


def pretrain(parse: Callable) -> None:
    """Train an encoder, or continue the run that is in its folder."""
    config = parse(C.PretrainConfig)
    from hypersphere_jax import report, sheets
    from hypersphere_jax.training import loop, processes, sharding

    sharding.keep_compiled(config.runtime.cache_dir)
    folder = loop.train(config, command=_command(), opened=_say_if_new)
    if processes.is_first():
        sheets.draw(folder)
        say(f"trained: {folder}{_page(folder)}")
        say(f"evaluate: {report.next_commands(folder)[0]}")


def probe(parse: Callable) -> None:
    """Linear probes and k-NN on the features of checkpoints, or on user-supplied ones."""
    config = parse(C.ProbeConfig)
    from hypersphere_jax.evaluate import results_file
    from hypersphere_jax.evaluate.probe_verb import run_probe
    from hypersphere_jax.report import print_table

    _keep_compiled(config.runs, config.runs_dir)
    failures: list[str] = []
    scores = run_probe(config, lambda line: say(line, sys.stderr), failures.append)
    if scores:
        title, columns, rows = results_file.table(scores)
        print_table(columns, rows, title)
        _pages(config.runs, config.runs_dir)
    if failures:
        raise C.UserError("; ".join(failures))


def metrics(parse: Callable) -> None:
    """Alignment, uniformity and geometry of the features of a checkpoint, or of a file."""
    config = parse(C.MetricsConfig)
    from hypersphere_jax import plots
    from hypersphere_jax.evaluate import metrics_verb
    from hypersphere_jax.report import print_table, with_error

    _keep_compiled([config.run], config.runs_dir)
    result = metrics_verb.run_metrics(config)
    where = [key for key in ("split", "step") if key in result]
    columns = [*where, "n", "d", "L_align", "L_uniform", "its optimum", "bound at n"]
    row = [result[key] for key in (*where, "n", "d")]
    row += [with_error(result[k], result[f"{k}_standard_error"]) for k in ("align", "uniform")]
    row += [f"{result[f'uniform_{key}']:.6f}" for key in ("optimum", "lower_bound")]
    title = f"alpha = {result['align_alpha']:g}, t = {result['uniform_t']:g}"
    print_table(columns, [row], title)
    others = [[name, with_error(*of), uniform] for name, *of, uniform in metrics_verb.lines(result)]
    if others:
        print()
        print_table(["beside these", "measured", "uniform sphere"], others)
    out, figure = metrics_verb.places(config)
    drawn = figure and plots.metrics_figure(result, figure)
    for path in filter(None, (out, drawn and figure)):
        say(f"written: {path}", sys.stderr)
    _pages([config.run], config.runs_dir)


def features(parse: Callable) -> None:
    """Features of any images, by a run or a saved encoder, into an .npy or .npz file."""
    config = parse(C.FeaturesConfig)
    from hypersphere_jax.evaluate.features_verb import run_features

    _keep_compiled([config.run], config.runs_dir)
    written = run_features(config)
    shapes = [f"{split} {list(shape)}".strip() for split, shape in written.shapes.items()]
    least, largest = (f"{norm:.4g}" for norm in written.norms)
    norms = f"norm {least}" if least == largest else f"norms {least} to {largest}"
    say(f"layer {config.layer}: {', '.join(shapes)} float32, {norms}")
    say(f"written: {', '.join(map(str, written.files))}")
    if {"train", "test"} <= written.shapes.keys() and written.labelled:
        say(f"evaluate: {program()} probe {shlex.quote(str(config.out))}")


def depth(parse: Callable) -> None:
    """Depth maps from a checkpoint's frozen features (NYU-Depth-V2)."""
    config = parse(C.DepthConfig)
    from hypersphere_jax import plots
    from hypersphere_jax.evaluate import depth_verb
    from hypersphere_jax.report import print_table

    _keep_compiled(config.runs, config.runs_dir)
    results, figure, examples = depth_verb.run_depth(config)
    names = ["mse", "rmse", "abs_rel", "log10", "delta1", "delta2", "delta3"]
    keys = ["run", "layer", "step", *(["cv_mse"] if config.folds else []), *names, "n"]
    print_table(keys, [[result.get(key) for key in keys] for result in results])
    title = "{run}, {layer}: depth of test images, RMSE {rmse:.3f} m".format(**results[0])
    images, depths, predicted = examples
    plots.depth_sheet(title, list(images), depths, predicted, figure)
    say(f"picture: {figure}")
    _pages(config.runs, config.runs_dir)


def finetune(parse: Callable) -> None:
    """Train a classifier and the whole encoder of a run, on all labels or a part of them."""
    config = parse(C.FinetuneConfig)
    from hypersphere_jax import finetune, report, sheets
    from hypersphere_jax.training import sharding

    sharding.keep_compiled(config.runtime.cache_dir)
    folder, result = finetune.run_finetune(config, command=_command())
    if result is not None:
        names = {"top1": "top-1 (%)", "top5": "top-5 (%)"}
        keys = ["protocol", "layer", "labels", "top1", "top5", "n", "chosen"]
        report.print_table([names.get(key, key) for key in keys], [[result[key] for key in keys]])
        sheets.draw(folder)
        print(f"finetuned: {folder}{_page(folder)}")
        _pages([config.run], config.runs_dir)


def import_torch(parse: Callable) -> None:
    """Make a run of an encoder that was trained in PyTorch, to probe it."""
    config = parse(C.ImportConfig)
    from hypersphere_jax import torch_io

    folder = torch_io.import_torch(config, command=_command())
    layer = " --layers LAYER" if config.fresh_head else ""
    evaluate = f"{program()} probe {shlex.quote(str(folder))}{layer}"
    say(f"imported: {folder}\nevaluate: {evaluate}")


def export(parse: Callable) -> None:
    """Write the arrays of an encoder to a file, under PyTorch's names or our own."""
    config = parse(C.ExportConfig)
    from hypersphere_jax import torch_io

    print(torch_io.export(config))


def export_npz(parse: Callable) -> None:
    """The name that `export` had before."""
    export(parse)


def reproduce(parse: Callable) -> None:
    """A table or figure of a paper: its numbers and ours, at its scale or at a laptop's."""
    _need_repository("reproduce")
    from experiments.options import ReproduceConfig

    config = parse(ReproduceConfig)
    from experiments import reproduce

    reproduce.main(config, _command())


def data(parse: Callable) -> None:
    """Data sets: list and prepare them, inspect one, show a sheet of its augmented views."""
    where = "hypersphere_jax.data.data_verb"
    parse(
        {
            "list": Part(where, "list_names", "The data sets with a name, and where they are."),
            "prepare": Part(where, "prepare", "Download and prepare a data set."),
            "prepare-text": Part(where, "prepare_text", "Turn text files into a corpus."),
            "inspect": Part(where, "inspect", "Sizes, classes, means, deviations, reading speed."),
            "show": Part(where, "show", "Draw images, each with its two views by a recipe."),
        }
    )


def report(parse: Callable) -> None:
    """Write the page of one run, or one page of several."""

    def pages(
        names: tyro.conf.Positional[tuple[str, ...]], runs_dir: str = "runs", out: str | None = None
    ) -> Any:
        """Write the page of one run into its folder, or one page of several runs.

        Args:
            names: Runs: their folders, or their names in RUNS_DIR.
            runs_dir: Folder of all runs.
            out: The page of several runs; None: RUNS_DIR/report.html.
        """
        from hypersphere_jax import report, sheets
        from hypersphere_jax.training import run_folder

        folders = [run_folder.find(name, runs_dir) for name in names]
        if len(folders) == 1:
            sheets.draw(folders[0], redraw=False)
            return report.run_report(folders[0])
        from hypersphere_jax.runs_page import sweep_report

        return sweep_report(folders, out or Path(runs_dir, "report.html"), "Runs")

    say(str(parse(pages)))


def bench(parse: Callable) -> None:
    """Speed of the step and its parts, of losses and probes; what devices send each other."""
    _need_repository("bench")
    import benchmarks

    parse(
        {
            name: Part(f"benchmarks.{module}", function, about)
            for name, (module, function, about) in benchmarks.PARTS.items()
        }
    )


VERBS = {
    verb.__name__.replace("_", "-"): verb
    for verb in (
        *(quickstart, pretrain, finetune, probe, metrics, features, depth, reproduce, data),
        *(report, bench, import_torch, export, export_npz),
    )
}


HELP = ("--help", "-h", "--help-all")
# Those that train; of `reproduce` the settings are the papers'.
WITH_FILE = ("pretrain", "finetune", "quickstart")
ROOT = Path(__file__).parent.parent  # of the repository, where this is one


def main(arguments: list[str]) -> int:
    """Carries out a command line, without the program's name; returns its exit status."""
    if arguments[:1] == ["help"]:  # help VERB
        arguments = [*arguments[1:], "--help"]
    name = arguments[0] if arguments else "--help"
    if name not in (*HELP, "--version", *VERBS):
        hint = hints.verb(name, VERBS) or f"; the verbs are {', '.join(VERBS)}"
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
        say(f"error: {error}", sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of a pipe has closed it, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        what = "correct that and run the same command again; what was saved is kept"
        say(f"error: {error.strerror or error}{where}: {what}", sys.stderr)
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
    names was made with. Flags replace all of them. On CPU as many devices are made as the options
    ask for.
    """
    about = _about(verb)
    if isinstance(target, dict):
        if set(HELP) & set(arguments[:1]):
            say(_overview_of(verb, target))
            raise SystemExit(0)
        part, *arguments = arguments or [""]
        hint = did_you_mean(part, target) or f"; name one of {', '.join(target)}"
        wrong = f"{verb}: no {part!r}{hint}" if part else f"{verb}: {hint.strip('; ')}"
        C.require(part in target, wrong)
        about = target[part].about
        target, verb = target[part].load(), f"{verb} {part}"
    prog = f"{program()} {verb}"
    options: dict[str, Any] = {}
    if verb in WITH_FILE:
        default, help_text = None, [target.__doc__.split("\n\n")[0]]
        if verb == "pretrain":
            if arguments and not arguments[0].startswith("-"):
                name, *arguments = arguments
                prog, default = f"{prog} {name}", _experiments(f"pretrain {name}").find(name)
            elif _in_repository():
                names = ", ".join(_experiments(verb).PRETRAIN)
                help_text.append(
                    "The first argument may be an EXPERIMENT, whose settings are then the defaults "
                    f"of all options: {names}."
                )
        help_text.append(
            "`--config FILE` takes options from a file, YAML or JSON as a run's config.json; flags "
            "override it."
        )
        if verb != "quickstart":
            help_text.append(
                "Without these, if there is a run of that `--name`, its options are the defaults."
            )
        options["description"] = " ".join(help_text)
        file, arguments = _option("--config", arguments)
        if file is not None:
            from hypersphere_jax.config.from_file import blank, with_file

            default = with_file(default or blank(target, tyro.MISSING), file)
        elif default is None and verb != "quickstart":
            default = _recorded(verb, arguments)
        options |= {} if default is None else {"default": default}
    if verb in usage.PAGES and not {"--help", "-h"}.isdisjoint(arguments):
        default = options.get("default")
        print(usage.short_help(program(), verb, about, target, default, _in_repository()))
        raise SystemExit(0)
    arguments = ["--help" if argument in HELP else argument for argument in arguments]
    options["config"] = (tyro.conf.OmitArgPrefixes, tyro.conf.SuppressFixed)
    with hints.one_line(verb, target, arguments):
        result = tyro.cli(_later(target), args=arguments, prog=prog, **options)
    result = result() if isinstance(result, functools.partial) else result
    devices = getattr(getattr(result, "runtime", result), "devices", None)
    if devices is not None:
        from hypersphere_jax.training.sharding import use_virtual_cpu_devices

        use_virtual_cpu_devices(devices)
    return result


def _later(target: Any) -> Any:
    """Of a function, the one with the same arguments that gives the call; else the target."""
    if not inspect.isfunction(target):
        return target

    @functools.wraps(target)
    def later(*arguments: Any, **options: Any) -> Any:
        return functools.partial(target, *arguments, **options)

    return later


def _recorded(verb: str, arguments: list[str]) -> Any:
    """The options of the run that `--name` names, as its last session had them; None: no run."""
    (name, _), (runs_dir, _) = (_option(flag, arguments) for flag in ("--name", "--runs-dir"))
    runs_dir = runs_dir or C.PretrainConfig.runs_dir
    if name is None or not (file := Path(runs_dir, name, "config.json")).is_file():
        return None
    from hypersphere_jax import finetune
    from hypersphere_jax.training import run_folder

    say(f"{name}: options as recorded in {file}", sys.stderr)
    read = run_folder.read_config if verb == "pretrain" else finetune.recorded
    return dataclasses.replace(read(file.parent), name=name, runs_dir=runs_dir)


def _say_if_new(config: C.PretrainConfig) -> None:
    """A line on a run that begins, with a name near its own that there is, but for its digits."""
    folder = Path(config.runs_dir, config.name)
    if (folder / "config.json").is_file():
        return
    others = [file.parent.name for file in Path(config.runs_dir).glob("*/config.json")]
    near = did_you_mean(config.name, [name for name in others if _stem(name) != _stem(folder.name)])
    epochs = config.optimizer.epochs
    data = config.data.name.removeprefix(f"{os.getcwd()}/")
    what = f"{data}, {config.model.name}, {epochs} epoch{'s' if epochs > 1 else ''}"
    say(f"new run {folder}: {what}{near}", sys.stderr)


def _stem(name: str) -> str:
    return re.sub(r"[\d.]", "", name)


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


def _keep_compiled(runs: Sequence[str], runs_dir: str) -> None:
    """Keeps compiled programs where the first of the runs does; of files of features, as usual."""
    from hypersphere_jax.training import run_folder, sharding

    folder = C.RuntimeConfig.cache_dir
    with contextlib.suppress(C.UserError, OSError):  # the verb will say what is wrong
        run, *_ = run_folder.find_all(runs[0], runs_dir)
        folder = run_folder.read_config(run).runtime.cache_dir
    sharding.keep_compiled(folder)


def _in_repository() -> bool:
    """Whether this is a clone of the repository: `experiments` and `benchmarks` are there."""
    there = (ROOT / "run.py").is_file() and (ROOT / "experiments").is_dir()
    if there and str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    return there


def _need_repository(command: str) -> None:
    C.require(
        _in_repository(),
        f"{command} is in the repository only, not in the installed package: clone it, and there "
        f"run `python run.py {command}`",
    )


def _page(folder: Path) -> str:
    """Writes the page of a run that was trained; where it is, in brackets."""
    from hypersphere_jax import report

    return "".join(f" ({page})" for page in report.refreshed([folder], redraw=True))


def _pages(names: Sequence[str], runs_dir: str) -> None:
    """Writes the pages of runs that were evaluated anew, and says where they are."""
    from hypersphere_jax import report
    from hypersphere_jax.training import run_folder

    folders: list[Path] = []
    for name in names:
        with contextlib.suppress(C.UserError):  # a file of features, or what was told already
            folders += run_folder.find_all(name, runs_dir)
    pages = report.refreshed(folders)
    if pages:
        more = f" and {len(pages) - 1} more, each in its run's folder" if len(pages) > 1 else ""
        say(f"page: {pages[0]}{more}", sys.stderr)


def _experiments(command: str) -> Any:
    _need_repository(command)
    import experiments

    return experiments


def _command() -> str:
    return f"{program()} {shlex.join(sys.argv[1:])}".rstrip()
