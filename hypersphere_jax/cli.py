"""The command line, `python run.py COMMAND`: each command calls a function that Python users have.

Options are parsed by tyro from the config classes in `configs/`.
"""

import argparse
import contextlib
import dataclasses
import importlib
import keyword
import logging
import os
import platform
import shlex
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import docstring_parser
import tyro

from hypersphere_jax import __version__, configs
from hypersphere_jax.configs.base import (
    Config,
    Stopped,
    UserError,
    check_names,
    check_output,
    checked,
    did_you_mean,
    field_types,
    program,
    require,
)
from hypersphere_jax.configs.files import read_config_file
from hypersphere_jax.utils import memory, xla

ROOT = Path(__file__).parent.parent  # of the repository, if this is a clone
CONFIG_HELP = (
    "Defaults come from --config FILE (YAML or JSON, or the config.json of a run), otherwise from "
    "the run of that --name if it exists. Flags override both."
)


def main(arguments: list[str]) -> int:
    """Run a command and return its exit status: 2 for invalid input, with one line on stderr."""
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    name = arguments[0] if arguments else "--help"
    silence_orbax()
    try:
        if name in ("--help", "-h"):
            print(overview())
        elif name == "--version":
            versions = f"jax {metadata.version('jax')}, Python {platform.python_version()}"
            print(f"hypersphere_jax {__version__}, {versions}")
        else:
            hint = did_you_mean(name, COMMANDS) or f"; commands are {', '.join(COMMANDS)}"
            require(name in COMMANDS, f"unknown command {name!r}{hint}")
            with _log_to_stderr():
                COMMANDS[name](arguments[1:])
    except Stopped as stopped:
        print(stopped, file=sys.stderr)
    except UserError as error:
        return _failed(error)
    except BrokenPipeError:  # the reader of a pipe has closed it, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (MemoryError, RuntimeError) as error:
        if not memory.is_used_up(error):
            raise
        return _failed(f"{memory.described(error)}: {memory.ADVICE}; saved files are kept")
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        advice = "correct that and run the same command again; saved files are kept"
        return _failed(f"{error.strerror or error}{where}: {advice}")
    return 0


def _failed(reason: object) -> int:
    print(f"error: {' '.join(str(reason).split())}", file=sys.stderr)
    return 2


def overview() -> str:
    """Return the list of commands."""
    usage = f"usage: {program()} COMMAND [options]\n       {program()} COMMAND --help\n"
    lines = [f"  {name:<14}{(run.__doc__ or '').splitlines()[0]}" for name, run in COMMANDS.items()]
    return "\n".join([usage, *lines])


def silence_orbax() -> None:
    """Silence what Orbax logs about failed reads and saves, which raise errors as well."""
    for name in ("absl", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    show = sys.unraisablehook

    # After a failure Orbax's threads report to an event loop that it closed.
    def hook(unraisable: Any) -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            show(unraisable)

    sys.unraisablehook = hook


class _Once(logging.Filter):
    """Drop repeated messages."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        is_new = message not in self._seen
        self._seen.add(message)
        return is_new


@contextlib.contextmanager
def _log_to_stderr() -> Any:
    """Print the package's log messages to stderr while a command runs."""
    logger = logging.getLogger("hypersphere_jax")
    before = (logger.level, logger.propagate)
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_Once())
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]


# Parsing.


def parse(
    cls: type[Config],
    command: str,
    arguments: Sequence[str],
    default: Any = None,
    **more: Any,
) -> Any:
    """Return a config from flags. The help groups them by the sections that `cls` is composed of.

    Args:
      cls: a config class.
      command: name of the command, for the help.
      arguments: the flags.
      default: config that gives the values of flags that are not given.
      more: options of `tyro.cli`, such as `description`.
    """
    prog = f"{program()} {command}"
    markers = (tyro.conf.OmitArgPrefixes,)
    join_help_lines(cls)
    sections = [base for base in cls.__bases__ if base is not Config]
    if len(sections) < 2:
        given = {} if default is None else {"default": default}
        return tyro.cli(cls, args=arguments, prog=prog, config=markers, **given, **more)
    fields: list[tuple[str, type, Any]] = []
    for base in sections:
        is_required = any(f.default is dataclasses.MISSING for f in dataclasses.fields(base))
        value: Any
        if default is not None:
            value = dataclasses.field(default=unchecked(base, vars(default)))
        elif is_required:
            value = dataclasses.field()
        else:
            value = dataclasses.field(default=base())
        name = base.__name__.removesuffix("Config").removesuffix("Options").lower()
        name = f"{name}_" if keyword.iskeyword(name) else name
        fields.append((name, base, value))
    fields.sort(key=lambda field: field[2].default is not dataclasses.MISSING)
    grouped = dataclasses.make_dataclass("Options", fields)
    parts = tyro.cli(grouped, args=arguments, prog=prog, config=markers, **more)
    values: dict[str, Any] = {}
    for part in vars(parts).values():
        values |= vars(part)
    return cls(**values)


def join_help_lines(cls: type[Config]) -> None:
    """Join the lines of attribute docstrings, which tyro prints as the source wraps them."""
    for base in cls.__mro__:
        if dataclasses.is_dataclass(base):
            for option in docstring_parser.parse_from_object(base).params:
                text = " ".join((option.description or "").split())
                field = base.__dataclass_fields__[option.arg_name]
                field.metadata = types.MappingProxyType({"help": text})


def parse_run(cls: type[Config], command: str, arguments: Sequence[str], recorded: Callable) -> Any:
    """Return the config of a command that trains; see `CONFIG_HELP` for its defaults.

    Args:
      cls: `PretrainConfig` or `FinetuneConfig`.
      command: name of the command; `pretrain` takes the name of an experiment first.
      arguments: the flags.
      recorded: (folder of a run) -> the config that it was made with.
    """
    default = None
    if command == "pretrain" and arguments and not arguments[0].startswith("-"):
        default = experiments("pretrain").find(arguments[0])
        arguments = arguments[1:]
    peek = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    peek.add_argument("--config")
    peek.add_argument("--name")
    peek.add_argument("--runs-dir", "--runs_dir", default=configs.PretrainConfig.runs_dir)
    known, _ = peek.parse_known_args(arguments)
    folder = Path(known.runs_dir, known.name or "default")
    if known.config is not None:
        default = with_file(cls, known.config, default)
        only_config = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        only_config.add_argument("--config")
        _, arguments = only_config.parse_known_args(arguments)
    elif default is None and known.name and (folder / "config.json").is_file():
        print(f"{known.name}: options as recorded in {folder / 'config.json'}", file=sys.stderr)
        default = recorded(folder).replace(name=known.name, runs_dir=known.runs_dir)
    description = f"{(cls.__doc__ or '').splitlines()[0]} {CONFIG_HELP}"
    if command == "pretrain" and in_repository():
        names = ", ".join(experiments("pretrain").PRETRAIN)
        description += f" The first argument may be an experiment that gives defaults: {names}."
    config = parse(cls, command, arguments, default, description=description)
    xla.use_eigen()
    xla.prepare(config.devices, config.deterministic)
    xla.keep_compiled(config.cache_dir)
    return config


def with_file(cls: type[Config], file: str, default: Any) -> Any:
    """Return a config with the options of a file in place of those of `default`, if given.

    Only names and types are checked: a file may need flags to be complete.
    """
    values = read_config_file(file)
    kinds = field_types(cls)  # type: ignore[arg-type]
    try:
        check_names(cls, values)
        values = {name: checked(name, value, kinds[name]) for name, value in values.items()}
    except UserError as error:
        raise UserError(f"--config {file}: {error}") from error
    defaults = {field.name: field.default for field in dataclasses.fields(cls)}
    if default is not None:
        defaults = vars(default)
    return unchecked(cls, defaults | values)


def unchecked(cls: type[Config], values: Mapping[str, Any]) -> Any:
    """Return a config that tyro takes as defaults, without the checks of its class."""
    config = object.__new__(cls)
    for field in dataclasses.fields(cls):
        value = values[field.name]
        value = tyro.MISSING if value is dataclasses.MISSING else value
        object.__setattr__(config, field.name, value)
    return config


def parse_evaluation(cls: type[Config], command: str, arguments: Sequence[str]) -> Any:
    """Return the config of a command that evaluates, and prepare its devices and compile cache."""
    config = parse(cls, command, arguments)
    xla.prepare(getattr(config, "devices", None))
    xla.keep_compiled(configs.RuntimeConfig.cache_dir)
    return config


def typed() -> str:
    """Return the command as it was typed, for the record of a run."""
    return f"{program()} {shlex.join(sys.argv[1:])}".rstrip()


# Commands.


def quickstart(arguments: list[str]) -> None:
    """Train, evaluate and draw encoders of digits, in minutes: the first thing to run."""
    need_repository("quickstart")
    from experiments.options import QuickstartConfig

    config = parse(QuickstartConfig, "quickstart", arguments)
    from experiments import quickstart

    quickstart.main(config, typed())


def pretrain(arguments: list[str]) -> None:
    """Train an encoder, or resume the run in its folder."""

    def recorded(folder: Path) -> Any:
        from hypersphere_jax.training import run_dir

        return run_dir.read_config(folder)

    config = parse_run(configs.PretrainConfig, "pretrain", arguments, recorded)
    from hypersphere_jax.training import distributed
    from hypersphere_jax.training.train import train

    folder = train(config, command=typed(), on_setup=announce)
    if distributed.is_first():
        from hypersphere_jax.reporting import pictures, run_page

        pictures.draw_pictures(folder)
        page = run_page.write_run_page(folder)
        print(f"trained: {folder} ({page})")
        print(f"evaluate: {run_page.next_commands(folder)[0]}")


def finetune(arguments: list[str]) -> None:
    """Train a classifier and the whole encoder of a run, on all labels or a share of them."""

    def recorded(folder: Path) -> Any:
        from hypersphere_jax.training import finetune

        return finetune.recorded(folder)

    config = parse_run(configs.FinetuneConfig, "finetune", arguments, recorded)
    from hypersphere_jax.reporting import pictures, run_page
    from hypersphere_jax.reporting.tables import print_table
    from hypersphere_jax.training import finetune

    folder, result = finetune.run_finetune(config, command=typed())
    if result is not None:
        keys = ["protocol", "layer", "labels", "top1", "top5", "n", "chosen"]
        columns = ["protocol", "layer", "labels", "top-1 (%)", "top-5 (%)", "n", "chosen"]
        print_table(columns, [[result[key] for key in keys]])
        pictures.draw_pictures(folder)
        page = run_page.write_run_page(folder)
        print(f"finetuned: {folder} ({page})")
        refresh_pages([config.run], config.runs_dir)


def probe(arguments: list[str]) -> None:
    """Linear probes and k-NN on features of checkpoints or from files."""
    config = parse_evaluation(configs.ProbeConfig, "probe", arguments)
    from hypersphere_jax.evaluate import results_file
    from hypersphere_jax.evaluate.probe_runs import run_probe
    from hypersphere_jax.reporting.tables import print_table

    failures: list[str] = []
    results = run_probe(config, lambda line: print(line, file=sys.stderr), failures.append)
    if results:
        title, columns, rows = results_file.results_table(results)
        print_table(columns, rows, title)
        refresh_pages(config.runs, config.runs_dir)
    require(not failures, "; ".join(failures))


def metrics(arguments: list[str]) -> None:
    """Alignment, uniformity and geometry of the features of a checkpoint, or of a file."""
    config = parse_evaluation(configs.MetricsConfig, "metrics", arguments)
    from hypersphere_jax.evaluate import measure_runs
    from hypersphere_jax.reporting import plots
    from hypersphere_jax.reporting.tables import print_table, with_error

    result = measure_runs.run_metrics(config)
    where = [key for key in ("split", "step") if key in result]
    columns = [*where, "n", "d", "L_align", "L_uniform", "its optimum", "bound at n"]
    row = [result[key] for key in (*where, "n", "d")]
    row += [with_error(result[k], result[f"{k}_standard_error"]) for k in ("align", "uniform")]
    row += [f"{result[f'uniform_{key}']:.6f}" for key in ("optimum", "lower_bound")]
    title = f"alpha = {result['align_alpha']:g}, t = {result['uniform_t']:g}"
    print_table(columns, [row], title)
    others = measure_runs.metrics_rows(result)
    if others:
        print()
        rows = [[name, with_error(*value), uniform] for name, *value, uniform in others]
        print_table(["", "measured", "uniform sphere"], rows)
    out, figure = measure_runs.metrics_files(config)
    is_drawn = figure is not None and plots.metrics_figure(result, figure)
    for path in (out, figure if is_drawn else None):
        if path is not None:
            print(f"written: {path}", file=sys.stderr)
    refresh_pages([config.run], config.runs_dir)


def features(arguments: list[str]) -> None:
    """Features of any images, by a run or a saved encoder, into an .npy or .npz file."""
    config = parse_evaluation(configs.FeaturesConfig, "features", arguments)
    from hypersphere_jax.evaluate.write_features import run_features

    written = run_features(config)
    shapes = [f"{split} {list(shape)}".strip() for split, shape in written.shapes.items()]
    low, high = written.norms
    print(f"layer {config.layer}: {', '.join(shapes)} float32, norms {low:.4g} to {high:.4g}")
    print(f"written: {', '.join(map(str, written.files))}")
    if {"train", "test"} <= written.shapes.keys() and written.is_labelled:
        print(f"evaluate: {program()} probe {shlex.quote(str(config.out))}")


def depth(arguments: list[str]) -> None:
    """Depth maps from a checkpoint's frozen features (NYU-Depth-V2)."""
    config = parse_evaluation(configs.DepthConfig, "depth", arguments)
    from hypersphere_jax.evaluate import depth_verb
    from hypersphere_jax.reporting import plots
    from hypersphere_jax.reporting.tables import print_table

    results, figure, examples = depth_verb.run_depth(config)
    keys = ["run", "layer", "step"]
    if config.folds:
        keys.append("cv_mse")
    keys += ["mse", "rmse", "abs_rel", "log10", "delta1", "delta2", "delta3", "n"]
    print_table(keys, [[result.get(key) for key in keys] for result in results])
    title = "{run}, {layer}: depth of test images, RMSE {rmse:.3f} m".format(**results[0])
    images, depths, predicted = examples
    plots.depth_sheet(title, list(images), depths, predicted, figure)
    print(f"picture: {figure}")
    refresh_pages(config.runs, config.runs_dir)


def reproduce(arguments: list[str]) -> None:
    """A table or figure of a paper: its numbers and ours, side by side."""
    need_repository("reproduce")
    from experiments.options import ReproduceConfig

    config = parse(ReproduceConfig, "reproduce", arguments)
    from experiments import reproduce

    reproduce.main(config, typed())


def data(arguments: list[str]) -> None:
    """Data sets: list, prepare, inspect, or show augmented views."""
    module = importlib.import_module("hypersphere_jax.reporting.datasets")
    parts = {
        "list": module.list_names,
        "prepare": module.prepare,
        "prepare-text": module.prepare_text,
        "inspect": module.inspect,
        "show": module.show,
    }
    _run_part("data", parts, arguments)


def report(arguments: list[str]) -> None:
    """Write the page of one run, or one page of several."""

    def pages(
        runs: tyro.conf.Positional[tuple[str, ...]], runs_dir: str = "runs", out: Path | None = None
    ) -> Path:
        """Write the page of one run to its folder, or one page of several runs.

        Args:
            runs: Folders of runs, or their names in RUNS_DIR.
            runs_dir: Folder of all runs.
            out: Page of several runs. Defaults to RUNS_DIR/report.html.
        """
        check_output(out, ".html")
        require(out is None or len(runs) > 1, "out= is for several runs: leave it out")
        from hypersphere_jax.reporting import differences, pictures, run_page, tables
        from hypersphere_jax.training import run_dir

        folders = [run_dir.find(name, runs_dir) for name in runs]
        if len(folders) == 1:
            pictures.draw_pictures(folders[0], redraw=False)
            return run_page.write_run_page(folders[0])
        page = out or Path(runs_dir, "report.html")
        if out is not None:
            for file in differences.comparison_files(out):
                check_output(file, ".csv", ".png")
        table = differences.write_comparison(folders, page)
        tables.print_table(table.columns, table.rows)
        return page

    print(tyro.cli(pages, args=arguments, prog=f"{program()} report"))


def bench(arguments: list[str]) -> None:
    """Speed of losses, steps, probes and the data pipeline, next to alternatives."""
    need_repository("bench")
    import benchmarks
    from benchmarks import options

    parts = {name: getattr(options, name) for name in benchmarks.PARTS}
    _run_part("bench", parts, arguments)


def import_torch(arguments: list[str]) -> None:
    """Make a run from an encoder that was trained in PyTorch, to evaluate it."""
    config = parse(configs.ImportConfig, "import-torch", arguments)
    from hypersphere_jax import pretrained
    from hypersphere_jax.reporting import run_page

    folder = pretrained.import_torch(config, command=typed())
    layer = " --layer LAYER" if config.fresh_head else ""
    print(f"imported: {folder}\nevaluate: {run_page.next_commands(folder)[0]}{layer}")


def export(arguments: list[str]) -> None:
    """Write the arrays of an encoder to a file, under PyTorch's names or this package's."""
    config = parse(configs.ExportConfig, "export", arguments)
    from hypersphere_jax import pretrained

    print(pretrained.export(config))


COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "quickstart": quickstart,
    "pretrain": pretrain,
    "finetune": finetune,
    "probe": probe,
    "metrics": metrics,
    "features": features,
    "depth": depth,
    "reproduce": reproduce,
    "data": data,
    "report": report,
    "bench": bench,
    "import-torch": import_torch,
    "export": export,
}


def _run_part(command: str, parts: dict[str, Callable], arguments: list[str]) -> None:
    """Run a part of a command, such as `data list`."""
    tyro.extras.subcommand_cli_from_dict(
        parts,
        prog=f"{program()} {command}",
        args=arguments,
        config=(tyro.conf.OmitArgPrefixes,),
    )


def announce(config: configs.PretrainConfig, samples: int) -> None:
    """Announce a new run, and suggest a similarly named existing one."""
    folder = Path(config.runs_dir, config.name)
    if (folder / "config.json").is_file():
        return
    others = [file.parent.name for file in Path(config.runs_dir).glob("*/config.json")]
    hint = did_you_mean(config.name, others, cutoff=0.9)
    left_over = 0 if config.reads_text else samples % config.batch_size
    dropped = f"; the last {left_over:,} of {samples:,} images are dropped each epoch"
    line = f"new run {folder}: {config.data}, {config.model}, {config.epochs} epochs"
    print(f"{line}{dropped if left_over else ''}{hint}", file=sys.stderr)


def refresh_pages(names: Sequence[str], runs_dir: str) -> None:
    """Write the pages of runs that were evaluated."""
    from hypersphere_jax.reporting import run_page
    from hypersphere_jax.training import run_dir

    folders: list[Path] = []
    for name in names:
        with contextlib.suppress(UserError):  # a file of features
            folders += run_dir.find_all(name, runs_dir)
    for page in run_page.update_pages(folders)[:1]:
        print(f"page: {page}", file=sys.stderr)


def in_repository() -> bool:
    """Return whether this is a clone of the repository, with `experiments` and `benchmarks`."""
    is_clone = (ROOT / "run.py").is_file() and (ROOT / "experiments").is_dir()
    if is_clone and str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    return is_clone


def need_repository(command: str) -> None:
    """Raise UserError for a command that an installed package does not have."""
    require(
        in_repository(),
        f"{command} needs a clone of the repository: run `python run.py {command}` there",
    )


def experiments(command: str) -> Any:
    need_repository(command)
    return importlib.import_module("experiments")
