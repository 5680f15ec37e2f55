"""The import of matplotlib, which fails where MPLBACKEND names an unknown backend."""

import contextlib
import importlib
import os
import sys

backend = os.environ.get("MPLBACKEND")
if backend is not None and "matplotlib" not in sys.modules:
    # Such as Jupyter's backend, in a shell that Jupyter opened and another environment.
    del os.environ["MPLBACKEND"]
    matplotlib = importlib.import_module("matplotlib")
    os.environ["MPLBACKEND"] = backend
    with contextlib.suppress(ValueError):
        matplotlib.rcParams["backend"] = backend
