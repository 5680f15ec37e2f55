"""Entry point of `python run.py`, `python -m hypersphere_jax` and `hypersphere-jax`."""

import gc
import os
import sys


def main() -> int:
    """Run the command line and return its exit status; 2 if a package is missing."""
    if sys.platform == "win32":
        print("error: this runs on Linux and macOS; on Windows in WSL", file=sys.stderr)
        return 2
    os.environ["MPLBACKEND"] = "agg"
    # Imports and tracing create objects that stay. Collecting them takes 5% of the first step.
    gc.set_threshold(1_000_000, 50, 50)
    from hypersphere_jax.extras import how_to_install

    try:
        from hypersphere_jax import cli

        return cli.main(sys.argv[1:])
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except ModuleNotFoundError as error:
        advice = how_to_install(error.name)
        if advice is None:
            raise
        print(f"error: {error.name} is not installed: {advice}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
