"""Persistent worker processes, one thread each, with samples in one shared file."""

from idiolect.engines.processes.pool import Processes

__all__ = ["Processes"]
