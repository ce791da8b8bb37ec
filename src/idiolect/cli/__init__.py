"""The command line: a file for each command, whose options come from the table of settings in ``studies``."""

from idiolect.cli.app import app, main

__all__ = ["app", "main"]
