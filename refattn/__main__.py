"""``python -m refattn`` and the command ``refattn``."""

import sys

from refattn.cli import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
