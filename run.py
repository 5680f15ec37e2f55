import sys

from hypersphere_jax.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
