"""The command line: `hypersphere-jax VERB`, or `python -m hypersphere_jax VERB`; see cli.py."""

import _signal  # `signal`, and all else that takes long to import, comes after `_end_early`
import gc
import io
import os
import sys


class _Unfailing(io.FileIO):
    """What nobody reads any more, as after Ctrl-C in `… 2>&1 | tee log`, does not end the work."""

    def write(self, data: object) -> int:
        try:
            return super().write(data)  # type: ignore[arg-type]
        except OSError:
            return len(data)  # type: ignore[arg-type]


def main() -> int:
    """Run the command and return its exit status, 2 if an extra of the package is missing."""
    if sys.platform == "win32":  # files are locked by `fcntl`
        print("error: this runs on Linux and macOS; on Windows in WSL", file=sys.stderr)
        return 2
    for number in (_signal.SIGINT, _signal.SIGTERM):
        _signal.signal(number, _end_early)
    # Imports and tracing make objects that stay. By default Python looks through them all the time;
    # at a tenth of this number it still took a twentieth of the time to the first step.
    gc.set_threshold(1_000_000, 50, 50)
    os.environ["MPLBACKEND"] = "agg"  # pictures go to files
    from hypersphere_jax import signals
    from hypersphere_jax.extras import how_to_install

    signals.answer_signals()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
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


def _end_early(*_: object) -> None:
    os.write(2, b"stopped before anything began\n")
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
