"""Clients on the machines of a Ray cluster."""

from idiolect.engines.ray.engine import Ray

__all__ = ["Ray"]
