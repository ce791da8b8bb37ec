"""``python -m idiolect`` is the command ``idiolect``."""

import sys

from idiolect.cli import main

if __name__ == "__main__":  # the workers of a run read this file too
    sys.exit(main())
