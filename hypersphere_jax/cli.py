"""The command line of hypersphere_jax. `python run.py VERB --help` explains a verb."""

import logging
import os
import shlex
import signal
import sys
from collections.abc import Callable
from typing import Annotated, Any


def quickstart(parse: Callable) -> None:
    """Train, evaluate and draw encoders of digits, in minutes: the first thing to run."""
    from experiments import quickstart

    quickstart.main(parse(quickstart.QuickstartConfig), _command())


def pretrain(parse: Callable) -> None:
    """Train an encoder, or continue the run that is in its folder."""
    import experiments
    from hypersphere_jax.config import PretrainConfig

    config = parse(PretrainConfig, experiments)
    from hypersphere_jax import report
    from hypersphere_jax.train import loop, processes, sharding

    sharding.keep_compiled(config.runtime.cache_dir)
    folder = loop.train(config, command=_command())
    if not processes.is_first():
        return
    page = report.run_report(folder)
    more = f" {report.OF_SENTENCES}" if config.model.reads_text else ""
    print(f"trained: {folder} ({page})")
    print(f"evaluate: python run.py probe {shlex.quote(str(folder))}{more}")


def probe(parse: Callable) -> None:
    """Linear probes and k-NN on the features of checkpoints, or on user-supplied ones."""
    from hypersphere_jax.config import ProbeConfig, UserError

    config = parse(ProbeConfig)
    from hypersphere_jax.evaluate import results
    from hypersphere_jax.evaluate.probe_verb import probe
    from hypersphere_jax.report import print_table

    failures: list[str] = []
    scores = probe(config, lambda line: print(line, file=sys.stderr), failures.append)
    if scores:
        title, columns, rows = results.table(scores)
        print_table(columns, rows, title)
    if failures:
        raise UserError("; ".join(failures))


def metrics(parse: Callable) -> None:
    """Alignment, uniformity and geometry of the features of a checkpoint, or of a file."""
    from hypersphere_jax.config import MetricsConfig

    config = parse(MetricsConfig)
    from hypersphere_jax.evaluate import metrics_verb
    from hypersphere_jax.report import print_table, with_error

    result = metrics_verb.measure(config)
    where = {key: result[key] for key in ("split", "step") if key in result}
    print_table(
        [*where, "n", "d", "L_align", "L_uniform", "its optimum", "bound at n"],
        [
            [
                *(*where.values(), result["n"], result["d"]),
                with_error(result["align"], result["align_standard_error"]),
                with_error(result["uniform"], result["uniform_standard_error"]),
                *(f"{result[f'uniform_{key}']:.6f}" for key in ("optimum", "lower_bound")),
            ]
        ],
        f"alpha = {result['align_alpha']:g}, t = {result['uniform_t']:g}",
    )
    others = [
        [name, with_error(value, error), uniform]
        for name, value, error, uniform in metrics_verb.lines(result)
    ]
    if others:
        print()
        print_table(["beside these", "measured", "uniform sphere"], others)
    out, figure = metrics_verb.places(config)
    if figure is not None:
        from hypersphere_jax.plots import draw_metrics

        figure = draw_metrics(result, figure)
    for path in filter(None, (out, figure)):
        print(f"written: {path}", file=sys.stderr)


def depth(parse: Callable) -> None:
    """Depth maps from a checkpoint's frozen features (NYU-Depth-V2)."""
    from hypersphere_jax.config import DepthConfig

    config = parse(DepthConfig)
    from hypersphere_jax import plots
    from hypersphere_jax.evaluate import depth_verb
    from hypersphere_jax.report import print_table

    results, figure, examples = depth_verb.evaluate(config)
    names = ["mse", "rmse", "abs_rel", "log10", "delta1", "delta2", "delta3"]
    keys = ["run", "layer", "step", *(["cv_mse"] if config.folds else []), *names, "n"]
    print_table(keys, [[result.get(key) for key in keys] for result in results])
    best = results[0]
    title = f"{best['run']}, {best['layer']}: depth of test images, RMSE {best['rmse']:.3f} m"
    plots.depth_sheet(title, *examples, figure)
    print(f"picture: {figure}")


def finetune(parse: Callable) -> None:
    """Train a classifier and the whole encoder of a run, on all labels or a part of them."""
    from hypersphere_jax.config import FinetuneConfig

    config = parse(FinetuneConfig)
    from hypersphere_jax import finetune, report
    from hypersphere_jax.train import sharding

    sharding.keep_compiled(config.runtime.cache_dir)
    folder, result = finetune.finetune(config, command=_command())
    if result is None:
        return
    page = report.run_report(folder)
    columns = ["protocol", "layer", "labels", "top-1 (%)", "top-5 (%)", "n", "chosen"]
    keys = ["protocol", "layer", "labels", "top1", "top5", "n", "chosen"]
    report.print_table(columns, [[result[key] for key in keys]])
    print(f"finetuned: {folder} ({page})")


def import_torch(parse: Callable) -> None:
    """Make a run of an encoder that was trained in PyTorch, to probe it."""
    from hypersphere_jax.config import ImportConfig

    config = parse(ImportConfig)
    from hypersphere_jax import torch_io

    folder = torch_io.import_torch(config, command=_command())
    layer = " --layers LAYER" if config.fresh_head else ""
    print(f"imported: {folder}\nevaluate: python run.py probe {shlex.quote(str(folder))}{layer}")


def export_npz(parse: Callable) -> None:
    """Write the encoder of a run under PyTorch's names, for `load_state_dict`."""
    from hypersphere_jax.config import ExportConfig

    config = parse(ExportConfig)
    from hypersphere_jax import torch_io

    print(torch_io.export_npz(config))


def reproduce(parse: Callable) -> None:
    """A table or figure of a paper: its numbers and ours, at its scale or at a laptop's."""
    from experiments import reproduce

    reproduce.main(parse(reproduce.ReproduceConfig), _command())


def data(parse: Callable) -> None:
    """Data sets: list and prepare them, inspect one, show a sheet of its augmented views."""
    from hypersphere_jax.data import data_verb

    parse(
        {
            "list": data_verb.known,
            "prepare": data_verb.prepare,
            "prepare-text": data_verb.prepare_text,
            "inspect": data_verb.inspect,
            "show": data_verb.show,
        }
    )


def report(parse: Callable) -> None:
    """Write the page of one run, or one page of several."""
    from tyro.conf import Positional

    from hypersphere_jax import report
    from hypersphere_jax.train import run_folder

    def pages(
        names: Annotated[Positional[tuple[str, ...]], "runs"], out: str = "runs/report.html"
    ) -> Any:
        """Write the page of one run into its folder, or one page of several runs.

        Args:
            names: Runs: their folders, or their names under `runs/`.
            out: The page of several runs.
        """
        folders = [run_folder.find(name) for name in names]
        if len(folders) == 1:
            return report.run_report(folders[0])
        return report.sweep_report(folders, out, "Runs")

    print(parse(pages))


def bench(parse: Callable) -> None:
    """Speed of the step and its parts, of losses and probes; what devices send each other."""
    from benchmarks import (
        augment,
        convolution,
        data,
        knn,
        losses,
        probe,
        scaling,
        text,
        train_step,
        vmapped,
    )

    parse(
        {
            "step": train_step.step,
            "text": text.text,
            "vmapped": vmapped.vmapped,
            "convolution": convolution.layers,
            "augment": augment.augment,
            "data": data.pipelines,
            "losses": losses.scaling,
            "knn": knn.neighbours,
            "scaling": scaling.scaling,
            "probe": probe.probe,
        }
    )


VERBS = {
    verb.__name__.replace("_", "-"): verb
    for verb in (
        *(quickstart, pretrain, finetune, probe, metrics, depth, reproduce, data, report, bench),
        *(import_torch, export_npz),
    )
}


def main(arguments: list[str]) -> int:
    name = arguments[0] if arguments else "--help"
    if name in ("--help", "-h", "help"):
        print("usage: python run.py VERB [options]     options of a verb: VERB --help\n")
        for called, verb in VERBS.items():
            print(f"  {called:<14}{verb.__doc__.splitlines()[0]}")
        return 0
    from hypersphere_jax.config.base import Stopped, UserError, did_you_mean

    if name not in VERBS:
        hint = did_you_mean(name, VERBS) or f"; the verbs are {', '.join(VERBS)}"
        print(f"error: no verb {name!r}{hint}", file=sys.stderr)
        return 2

    silence_orbax()
    # SIGTERM stops as Ctrl-C does; the training loop handles both while it can save first.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        VERBS[name](lambda target, *named: _parse(target, name, arguments[1:], *named))
    except Stopped as stopped:
        print(stopped, file=sys.stderr)
    except KeyboardInterrupt:
        print(f"stopped; what was saved is kept, to go on: {_command()}", file=sys.stderr)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of a pipe has closed it, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        what = "correct that and run the same command again; what was saved is kept"
        print(f"error: {error.strerror or error}{where}: {what}", file=sys.stderr)
        return 2
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0


def silence_orbax() -> None:
    """Orbax's failed reads and saves raise: here it does not log them, with tracebacks, as well.

    After the first failure its threads report to an event loop that it has closed.
    """
    for name in ("absl", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    show = sys.unraisablehook

    def hook(unraisable):
        if str(unraisable.exc_value) != "Event loop is closed":
            show(unraisable)

    sys.unraisablehook = hook


def _parse(target: Any, verb: str, arguments: list[str], experiments: Any = None) -> Any:
    """Fills a dataclass or calls a function with what the command line gives.

    A dict of functions is a choice between them, by name. With experiments the first argument may
    be the name of one, whose settings are then the defaults. On CPU as many devices are made as the
    options ask for.
    """
    import tyro

    prog, options = f"run.py {verb}", {}
    if experiments is not None and arguments and not arguments[0].startswith("-"):
        name, *arguments = arguments
        prog, options = f"{prog} {name}", {"default": experiments.find(name)}
    elif experiments is not None:
        names = ", ".join(experiments.PRETRAIN)
        options = {
            "description": f"{target.__doc__} The first argument may be an EXPERIMENT, whose "
            f"settings are then the defaults of all options: {names}."
        }
    cli = tyro.extras.subcommand_cli_from_dict if isinstance(target, dict) else tyro.cli
    result = cli(
        target,
        args=arguments,
        prog=prog,
        **options,
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.SuppressFixed),
    )
    devices = getattr(getattr(result, "runtime", result), "devices", None)
    if devices is not None:
        from hypersphere_jax.train.sharding import use_virtual_cpu_devices

        use_virtual_cpu_devices(devices)
    return result


def _command() -> str:
    return shlex.join(["python", *sys.argv])
