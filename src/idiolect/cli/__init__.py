"""The command line."""

from idiolect.cli.app import app, main

__all__ = ["app", "main"]
