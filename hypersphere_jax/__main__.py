"""The command line: `hypersphere-jax VERB`, or `python -m hypersphere_jax VERB`; see cli.py."""

import contextlib
import io
import sys
from typing import Any

from hypersphere_jax import signals
from hypersphere_jax.extras import how_to_install


class _Unfailing(io.FileIO):
    """What nobody reads any more, as after Ctrl-C in `… 2>&1 | tee log`, does not end the work."""

    def write(self, data: Any) -> int:
        with contextlib.suppress(OSError):
            return super().write(data)
        return len(data)


def main() -> int:
    """Carries out the command; returns its exit status.

    Where an extra of the package is missing, that is one line and status 2.
    """
    if sys.platform == "win32":  # files are locked by `fcntl`
        print("error: this runs on Linux and macOS; on Windows in WSL", file=sys.stderr)
        return 2
    signals.answer_signals()
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(_Unfailing(2, "wb", closefd=False)),
        encoding=sys.stderr.encoding,
        errors="backslashreplace",
        line_buffering=True,
    )
    try:
        from hypersphere_jax import cli

        status = cli.main(sys.argv[1:])
        if signals.came:  # Python's own end would take memory away from what JAX still computes
            from hypersphere_jax.training import processes

            if not processes.is_multi_process():
                signals.end(status)
        return status
    except ModuleNotFoundError as error:
        how = how_to_install(error.name)
        if how is None:
            raise
        print(f"error: this needs {error.name}, which is not installed: {how}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
