"""The command line, `python run.py COMMAND`: each command calls a function that Python users have.

Options are parsed by tyro from the config classes in `configs/`.
"""

import argparse
import importlib
import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import tyro

from hypersphere_jax import __version__, configs
from hypersphere_jax.configs.base import Config, Stopped, UserError, did_you_mean, program, require
from hypersphere_jax.configs.flags import join_help_lines, parse_flags, read_options, with_flags
from hypersphere_jax.utils import memory, xla
from hypersphere_jax.utils.terminal import log_to_stderr, silence_orbax

ROOT = Path(__file__).parent.parent  # the repository, if this is a clone
CONFIG_HELP = (
    "--config FILE gives defaults (YAML, JSON, or a run's config.json); flags override it."
)
NAME_HELP = "Without --config, the run of that --name gives them if it exists."


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
            with log_to_stderr():
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
        reason = str(error.strerror or error)
        if error.filename:
            reason += f" ({error.filename})"
        return _failed(
            f"{reason}: correct that and run the same command again; saved files are kept"
        )
    return 0


def _failed(reason: object) -> int:
    print(f"error: {with_flags(' '.join(str(reason).split()))}", file=sys.stderr)
    return 2


def overview() -> str:
    """Return the list of commands."""
    usage = f"usage: {program()} COMMAND [options]\n       {program()} COMMAND --help\n"
    lines = [f"  {name:<14}{summary(name)}" for name in COMMANDS]
    return "\n".join([usage, *lines])


def summary(command: str) -> str:
    """Return the first line about a command."""
    return (COMMANDS[command].__doc__ or "").splitlines()[0]


# Parsing.


def parse(
    cls: type[Config],
    command: str,
    arguments: Sequence[str],
    defaults: Mapping[str, Any] | None = None,
    description: str = "",
) -> Any:
    """Return the config of a command, see `parse_flags`; its help has the command's summary."""
    description = f"{summary(command)} {description}".rstrip()
    return parse_flags(cls, f"{program()} {command}", description, arguments, defaults)


def parse_run(cls: type[Config], command: str, arguments: Sequence[str]) -> Any:
    """Return the config of a command that trains; see `CONFIG_HELP` for its defaults.

    Args:
      cls: `PretrainConfig` or `FinetuneConfig`.
      command: Name of the command; `pretrain` takes the name of an experiment first.
      arguments: The flags.
    """
    description = CONFIG_HELP
    defaults: dict[str, Any] = {}
    (file,), arguments = _peek(arguments, "--config")
    if command == "pretrain":
        description += f" {NAME_HELP}"
        if in_repository():
            names = ", ".join(importlib.import_module("experiments").PRETRAIN)
            description += f" The first argument may be an experiment that gives defaults: {names}."
        if arguments and not arguments[0].startswith("-"):
            need_repository(command)
            defaults = vars(importlib.import_module("experiments").find(arguments[0]))
            arguments = arguments[1:]
        elif file is None:
            defaults = _recorded_options(arguments)
    if file is not None:
        defaults = defaults | read_options(cls, file)
    config = parse(cls, command, arguments, defaults, description)
    xla.use_eigen()
    xla.prepare(config.devices, config.deterministic)
    xla.keep_compiled(config.cache_dir)
    return config


def _recorded_options(arguments: Sequence[str]) -> dict[str, Any]:
    """Return the options of the existing run that `--name` names."""
    (name, runs_dir), _ = _peek(arguments, "--name", "--runs-dir")
    runs_dir = runs_dir or configs.PretrainConfig.runs_dir
    if name is None or not Path(runs_dir, name, "config.json").is_file():
        return {}
    from hypersphere_jax.training import run_dir

    folder = Path(runs_dir, name)
    print(f"{name}: options as recorded in {folder / 'config.json'}", file=sys.stderr)
    return vars(run_dir.read_config(folder)) | {"name": name, "runs_dir": runs_dir}


def _peek(arguments: Sequence[str], *flags: str) -> tuple[list[str | None], list[str]]:
    """Return the values of some flags, None for a missing one, and the other arguments."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for flag in flags:
        parser.add_argument(flag, f"--{flag[2:].replace('-', '_')}", dest=flag)
    known, others = parser.parse_known_args(arguments)
    return [getattr(known, flag) for flag in flags], others


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
    config = parse_run(configs.PretrainConfig, "pretrain", arguments)
    from hypersphere_jax.training import distributed
    from hypersphere_jax.training.train import train

    folder = train(config, command=typed(), on_setup=announce)
    if distributed.is_first():
        from hypersphere_jax.reporting import run_page

        print(f"trained: {folder} ({run_page.draw_run_page(folder)})")
        print(f"evaluate: {run_page.next_commands(folder)[0]}")


def finetune(arguments: list[str]) -> None:
    """Train a classifier and the whole encoder of a run, on all labels or a share of them."""
    config = parse_run(configs.FinetuneConfig, "finetune", arguments)
    from hypersphere_jax.reporting import run_page
    from hypersphere_jax.reporting.tables import print_table
    from hypersphere_jax.training import finetune

    folder, result = finetune.run_finetune(config, command=typed())
    if result is not None:
        keys = ["protocol", "layer", "labels", "top1", "top5", "n", "chosen"]
        print_table(keys, [[result[key] for key in keys]])
        print(f"finetuned: {folder} ({run_page.draw_run_page(folder)})")
        refresh_pages([config.run], config.runs_dir)


def probe(arguments: list[str]) -> None:
    """Linear probes and k-NN on features of checkpoints or from files."""
    config = parse_evaluation(configs.ProbeConfig, "probe", arguments)
    from hypersphere_jax.evaluation import results_file
    from hypersphere_jax.evaluation.probe_runs import run_probe
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
    from hypersphere_jax.evaluation import measure_runs
    from hypersphere_jax.reporting import plots
    from hypersphere_jax.reporting.tables import print_metrics

    result = measure_runs.run_metrics(config)
    print_metrics(result, measure_runs.metrics_rows(result))
    out, figure = measure_runs.metrics_files(config)
    is_drawn = figure is not None and plots.metrics_figure(result, figure)
    for path in (out, figure if is_drawn else None):
        if path is not None:
            print(f"written: {path}", file=sys.stderr)
    refresh_pages([config.run], config.runs_dir)


def features(arguments: list[str]) -> None:
    """Features of any images, by a run or a saved encoder, into an .npy or .npz file."""
    config = parse_evaluation(configs.FeaturesConfig, "features", arguments)
    from hypersphere_jax.evaluation.write_features import run_features

    written = run_features(config)
    shapes = [f"{split} {list(shape)}".strip() for split, shape in written.shapes.items()]
    print(f"layer {config.layer}: {', '.join(shapes)} float32")
    print(f"written: {', '.join(map(str, written.files))}")
    is_for_probe = "test" in written.shapes and config.out.suffix.lower() == ".npz"
    if is_for_probe and written.is_labelled:
        print(f"evaluate: {program()} probe {shlex.quote(str(config.out))}")


def depth(arguments: list[str]) -> None:
    """Depth maps from a checkpoint's frozen features (NYU-Depth-V2)."""
    from hypersphere_jax.depth.config import DepthConfig

    config = parse_evaluation(DepthConfig, "depth", arguments)
    from hypersphere_jax.depth.protocol import run_depth
    from hypersphere_jax.reporting import plots
    from hypersphere_jax.reporting.tables import print_table

    results, figure, examples = run_depth(config)
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
    from hypersphere_jax import data_command
    from hypersphere_jax.text.prepare import PrepareTextConfig

    for cls in (configs.DataConfig, PrepareTextConfig):
        join_help_lines(cls)
    _run_part("data", data_command.PARTS, arguments)


def report(arguments: list[str]) -> None:
    """Write the page of one run, or one page of several."""
    config = parse(configs.ReportConfig, "report", arguments)
    from hypersphere_jax.reporting import differences

    print(differences.write_report(config))


def bench(arguments: list[str]) -> None:
    """Speed of losses, steps, probes and the data pipeline, next to alternatives."""
    need_repository("bench")
    import benchmarks

    benchmarks.main(f"{program()} bench", arguments)


def import_torch(arguments: list[str]) -> None:
    """Make a run from an encoder that was trained in PyTorch, to evaluate it."""
    config = parse(configs.ImportConfig, "import-torch", arguments)
    from hypersphere_jax import pretrained
    from hypersphere_jax.reporting import run_page

    folder = pretrained.import_torch(config, command=typed())
    command = run_page.next_commands(folder)[0]
    if config.has_random_head:
        command += " --layer LAYER"
    print(f"imported: {folder}\nevaluate: {command}")


def export(arguments: list[str]) -> None:
    """Write the arrays of an encoder to a file, under PyTorch's names or this package's."""
    config = parse(configs.ExportConfig, "export", arguments)
    from hypersphere_jax import pretrained

    print(pretrained.export(config))


FUNCTIONS = (quickstart, pretrain, finetune, probe, metrics, features, depth)
FUNCTIONS += (reproduce, data, report, bench, import_torch, export)
COMMANDS = {function.__name__.replace("_", "-"): function for function in FUNCTIONS}


def _run_part(command: str, parts: dict[str, Any], arguments: list[str]) -> Any:
    """Call a part of a command, such as `data list`, and return its result."""
    return tyro.extras.subcommand_cli_from_dict(
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
    line = f"new run {folder}: {config.data}, {config.model}, {config.epochs} epochs"
    left_over = samples % config.batch_size
    if left_over and not config.reads_text:
        line += f"; the last {left_over:,} of {samples:,} images are dropped each epoch"
    print(f"{line}{hint}", file=sys.stderr)


def refresh_pages(names: Sequence[str], runs_dir: str) -> None:
    """Write the pages of runs that were evaluated."""
    from hypersphere_jax.reporting import run_page

    for page in run_page.update_pages(names, runs_dir)[:1]:
        print(f"page: {page}", file=sys.stderr)


def in_repository() -> bool:
    """Return whether this is a clone of the repository, with `experiments` and `benchmarks`."""
    is_clone = (ROOT / "run.py").is_file() and (ROOT / "experiments").is_dir()
    if is_clone and str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    return is_clone


def need_repository(command: str) -> None:
    """Raise UserError for a command that an installed package does not have."""
    advice = f"run `python run.py {command}` there"
    require(in_repository(), f"{command} needs a clone of the repository: {advice}")
