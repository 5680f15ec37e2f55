"""Entry point of `python run.py`, `python -m hypersphere_jax` and `hypersphere-jax`."""

import gc
import io
import signal
import sys


class _ClosableStream(io.FileIO):
    """A stream whose reader may end first, e.g. after Ctrl-C in `… 2>&1 | tee log`."""

    def write(self, data: object) -> int:
        try:
            return super().write(data)  # type: ignore[arg-type]
        except OSError:
            return len(data)  # type: ignore[arg-type]


def main() -> int:
    """Run the command line and return its exit status; 2 if a package is missing."""
    if sys.platform == "win32":
        print("error: this runs on Linux and macOS; on Windows in WSL", file=sys.stderr)
        return 2
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python's waits while XLA compiles
    # Imports and tracing make objects that stay, which Python would scan again and again.
    gc.set_threshold(1_000_000, 50, 50)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(_ClosableStream(2, "wb", closefd=False)),
        encoding=sys.stderr.encoding,
        errors="backslashreplace",
        line_buffering=True,
    )
    from hypersphere_jax.utils.extras import how_to_install

    try:
        from hypersphere_jax import cli

        return cli.main(sys.argv[1:])
    except ModuleNotFoundError as error:
        advice = how_to_install(error.name)
        if advice is None:
            raise
        print(f"error: {error.name} is not installed: {advice}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
