"""What each verb of the command line does, and the lines that it prints."""

import contextlib
import importlib
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tyro.conf import Positional

from hypersphere_jax import configs as C
from hypersphere_jax.configs.base import check_output, did_you_mean, program
from hypersphere_jax.terminal import say

ROOT = Path(__file__).parent.parent  # of the repository, where this is one


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
    from hypersphere_jax.training import processes, sharding
    from hypersphere_jax.training import train as training

    sharding.keep_compiled(config.cache_dir)
    folder = training.train(config, command=_command(), on_setup=_say_if_new)
    if processes.is_first():
        # Imports Matplotlib, for which the first step need not wait.
        from hypersphere_jax.reporting import pictures, run_page

        pictures.draw_pictures(folder)
        say(f"trained: {folder}{_page(folder)}")
        say(f"evaluate: {run_page.next_commands(folder)[0]}")


def probe(parse: Callable) -> None:
    """Linear probes and k-NN on the features of checkpoints, or on user-supplied ones."""
    config = parse(C.ProbeConfig)
    from hypersphere_jax.evaluate import results_file
    from hypersphere_jax.evaluate.probe_verb import run_probe
    from hypersphere_jax.reporting.tables import print_table

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
    from hypersphere_jax.evaluate import metrics_verb
    from hypersphere_jax.reporting import plots
    from hypersphere_jax.reporting.tables import print_table, with_error

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
    from hypersphere_jax.evaluate import depth_verb
    from hypersphere_jax.reporting import plots
    from hypersphere_jax.reporting.tables import print_table

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
    from hypersphere_jax import finetune
    from hypersphere_jax.reporting import pictures
    from hypersphere_jax.reporting.tables import print_table
    from hypersphere_jax.training import sharding

    sharding.keep_compiled(config.cache_dir)
    folder, result = finetune.run_finetune(config, command=_command())
    if result is not None:
        names = {"top1": "top-1 (%)", "top5": "top-5 (%)"}
        keys = ["protocol", "layer", "labels", "top1", "top5", "n", "chosen"]
        print_table([names.get(key, key) for key in keys], [[result[key] for key in keys]])
        pictures.draw_pictures(folder)
        say(f"finetuned: {folder}{_page(folder)}")


def import_torch(parse: Callable) -> None:
    """Make a run of an encoder that was trained in PyTorch, to probe it."""
    config = parse(C.ImportConfig)
    from hypersphere_jax import torch_io
    from hypersphere_jax.reporting import run_page

    folder = torch_io.import_torch(config, command=_command())
    layer = " --layer LAYER" if config.fresh_head else ""
    say(f"imported: {folder}\nevaluate: {run_page.next_commands(folder)[0]}{layer}")


def export(parse: Callable) -> None:
    """Write the arrays of an encoder to a file, under PyTorch's names or our own."""
    config = parse(C.ExportConfig)
    from hypersphere_jax import torch_io

    say(str(torch_io.export(config)))


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
        names: Positional[tuple[str, ...]], runs_dir: str = "runs", out: Path | None = None
    ) -> Any:
        """Write the page of one run into its folder, or one page of several runs.

        Args:
            names: Runs: their folders, or their names in RUNS_DIR.
            runs_dir: Folder of all runs.
            out: Page of several runs; its table (.csv) and curves (.png) are written to the same
                folder. Defaults to RUNS_DIR/report.html.
        """
        check_output(out, ".html")
        C.require(out is None or len(names) > 1, "--out is for several runs: leave it out")
        from hypersphere_jax.reporting import differences, pictures, run_page, tables
        from hypersphere_jax.training import run_dir

        folders = [run_dir.find(name, runs_dir) for name in names]
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

    say(str(parse(pages)))


def bench(parse: Callable) -> None:
    """Speed of the step and its parts, of losses and probes; what devices send each other."""
    _need_repository("bench")
    import benchmarks

    parse(
        {name: Part("benchmarks.options", name, about) for name, about in benchmarks.PARTS.items()}
    )


VERBS = {
    verb.__name__.replace("_", "-"): verb
    for verb in (
        *(quickstart, pretrain, finetune, probe, metrics, features, depth, reproduce, data),
        *(report, bench, import_torch, export),
    )
}


def _say_if_new(config: C.PretrainConfig, samples: int) -> None:
    """A line on a run that begins, with a name near its own that there is, but for its digits."""
    folder = Path(config.runs_dir, config.name)
    if (folder / "config.json").is_file():
        return
    others = [file.parent.name for file in Path(config.runs_dir).glob("*/config.json")]
    near = did_you_mean(config.name, [name for name in others if _stem(name) != _stem(folder.name)])
    epochs = config.epochs
    data = config.data.removeprefix(f"{os.getcwd()}/")
    what = f"{data}, {config.model}, {epochs} epoch{'s' if epochs > 1 else ''}"
    left_over = 0 if config.reads_text else samples % config.batch_size
    if left_over:
        what += f" of whole batches: {left_over:,} of the {samples:,} images sit out each time"
    say(f"new run {folder}: {what}{near}", sys.stderr)


def _stem(name: str) -> str:
    return re.sub(r"[\d.]", "", name)


def _keep_compiled(runs: Sequence[str], runs_dir: str) -> None:
    """Keeps compiled programs where the first of the runs does; of files of features, as usual."""
    from hypersphere_jax.training import run_dir, sharding

    folder = C.RuntimeConfig.cache_dir
    with contextlib.suppress(C.UserError, OSError):  # the verb will say what is wrong
        run, *_ = run_dir.find_all(runs[0], runs_dir)
        folder = run_dir.read_config(run).cache_dir
    sharding.keep_compiled(folder)


def in_repository() -> bool:
    """Whether this is a clone of the repository: `experiments` and `benchmarks` are there."""
    there = (ROOT / "run.py").is_file() and (ROOT / "experiments").is_dir()
    if there and str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    return there


def _need_repository(command: str) -> None:
    C.require(
        in_repository(),
        f"{command} is in the repository only, not in the installed package: clone it, and there "
        f"run `python run.py {command}`",
    )


def _page(folder: Path) -> str:
    """Write the page of a trained run, and return its path in brackets."""
    from hypersphere_jax.reporting import run_page

    return "".join(f" ({page})" for page in run_page.update_pages([folder]))


def _pages(names: Sequence[str], runs_dir: str) -> None:
    """Writes the pages of runs that were evaluated anew, and says where they are."""
    from hypersphere_jax.reporting import run_page
    from hypersphere_jax.training import run_dir

    folders: list[Path] = []
    for name in names:
        with contextlib.suppress(C.UserError):  # a file of features, or what was told already
            folders += run_dir.find_all(name, runs_dir)
    pages = run_page.update_pages(folders)
    if pages:
        more = f" and {len(pages) - 1} more, each in its run's folder" if len(pages) > 1 else ""
        say(f"page: {pages[0]}{more}", sys.stderr)


def experiments_for(command: str) -> Any:
    _need_repository(command)
    import experiments

    return experiments


def _command() -> str:
    return f"{program()} {shlex.join(sys.argv[1:])}".rstrip()
