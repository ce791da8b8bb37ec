"""Persistent worker processes, one thread each, on the rows of one shared file."""

from idiolect.engines.processes.pool import Processes, cores

__all__ = ["Processes", "cores"]
