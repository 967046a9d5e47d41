"""``python -m memprof``."""

import sys

from memprof.cli import main

if __name__ == "__main__":
    sys.exit(main())
