"""The command line: `hypersphere-jax VERB`, or `python -m hypersphere_jax VERB`; see cli.py."""

import sys

from hypersphere_jax import signals
from hypersphere_jax.extras import how_to_install


def main() -> int:
    """Carries out the command; returns its exit status.

    Where an extra of the package is missing, that is one line and status 2.
    """
    if sys.platform == "win32":  # files are locked by `fcntl`
        print("error: this runs on Linux and macOS; on Windows in WSL", file=sys.stderr)
        return 2
    signals.answer_signals()
    try:
        from hypersphere_jax import cli

        return cli.main(sys.argv[1:])
    except KeyboardInterrupt:  # before the command line could begin
        return 0
    except ModuleNotFoundError as error:
        how = how_to_install(error.name)
        if how is None:
            raise
        print(f"error: this needs {error.name}, which is not installed: {how}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
