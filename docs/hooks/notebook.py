"""Convert notebooks in the percent format (`# %%`) to pages and to .ipynb files.

`RUN_NOTEBOOKS=1 mkdocs build` also runs them: pages then show the output, the last value and the
figures of each cell. A failing cell stops the build.
"""

import ast
import contextlib
import io
import json
import os
import re
import sys
import tempfile
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

NOTEBOOKS = ("tutorial.py",)
RUN = os.environ.get("RUN_NOTEBOOKS") == "1"
_outputs: dict[str, list] = {}  # outputs by notebook source, a cache for `mkdocs serve`


def cells_of(source: str) -> list[tuple[bool, str]]:
    """Return the cells of a notebook as (is text, content)."""
    cells = []
    for part in re.split(r"^# %%", source, flags=re.MULTILINE)[1:]:
        kind, _, body = part.partition("\n")
        is_text = "[markdown]" in kind
        body = re.sub(r"^# ?", "", body, flags=re.MULTILINE) if is_text else body
        cells.append((is_text, body.strip()))
    return cells


def run(cells: list[tuple[bool, str]], name: str) -> list[tuple[str, list[bytes]]]:
    """Run the code cells; return the output of each with its last value, and its SVG figures."""
    matplotlib.use("Agg")
    names = {"__name__": "__main__"}
    outputs = []
    previous = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for number, (is_text, body) in enumerate(cells):
                if not is_text:
                    outputs.append(run_cell(body, names, f"{name}, cell {number}"))
        finally:
            os.chdir(previous)
    return outputs


def run_cell(body: str, names: dict, where: str) -> tuple[str, list[bytes]]:
    statements = ast.parse(body).body
    last = statements.pop() if statements and isinstance(statements[-1], ast.Expr) else None
    printed = io.StringIO()
    figures = []
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(ast.Module(statements, []), where, "exec"), names)
            if last is not None:
                value = eval(compile(ast.Expression(last.value), where, "eval"), names)
                if value is not None:
                    print(repr(value))
    except Exception as error:
        raise PluginError(f"{where}: {type(error).__name__}: {error}") from error
    for number in plt.get_fignums():
        picture = io.BytesIO()
        plt.figure(number).savefig(picture, format="svg", bbox_inches="tight")
        figures.append(picture.getvalue())
    plt.close("all")
    return printed.getvalue(), figures


def as_ipynb(cells: list[tuple[bool, str]]) -> str:
    def cell(is_text, body, number):
        common = {"id": f"cell-{number}", "metadata": {}, "source": body}
        if is_text:
            return {"cell_type": "markdown", **common}
        return {"cell_type": "code", "execution_count": None, "outputs": [], **common}

    numbered = [cell(*content, number) for number, content in enumerate(cells)]
    return json.dumps({"cells": numbered, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


def on_config(config):
    # mkdocstrings imports the package from the checkout if it is not installed.
    sys.path.insert(0, str(Path(config.config_file_path).parent))
    return config


def on_files(files, config):
    for name in NOTEBOOKS:
        source = (Path(config.docs_dir) / name).read_text()
        cells = cells_of(source)
        stem = name.removesuffix(".py")
        if source not in _outputs:
            _outputs[source] = run(cells, name) if RUN else [("", [])] * len(cells)
        outputs = iter(_outputs[source])
        page = []
        pictures = 0
        for is_text, body in cells:
            if is_text:
                page.append(body)
                continue
            printed, figures = next(outputs)
            page.append(f"```python\n{body}\n```")
            if printed.strip():
                page.append(f"```text\n{printed.rstrip()}\n```")
            for figure in figures:
                pictures += 1
                path = f"{stem}-{pictures}.svg"
                files.append(File.generated(config, path, content=figure))
                page.append(f"![Figure {pictures}]({path})")
        files.append(File.generated(config, f"{stem}.ipynb", content=as_ipynb(cells)))
        files.append(File.generated(config, f"{stem}.md", content="\n\n".join(page)))
    return files
