import sys

from hypersphere_jax.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
