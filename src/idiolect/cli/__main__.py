"""``python -m idiolect.cli``."""

from idiolect.cli import main

if __name__ == "__main__":
    main()
