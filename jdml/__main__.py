"""``python -m jdml``: the same as the command ``jdml``."""

import sys

from jdml.cli import main

if __name__ == "__main__":
    sys.exit(main())
