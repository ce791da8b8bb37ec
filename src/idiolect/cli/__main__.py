"""``python -m idiolect.cli``."""

from idiolect.cli import main

main()
