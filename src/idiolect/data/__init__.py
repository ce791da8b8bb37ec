"""Data flows one way: source, partition, shifts, and ``build`` packs them into one shape."""

from idiolect.data.pack import PARTITIONS, SHIFTS, FederatedData, build, manifest
from idiolect.data.sources import Source, describe, load, names

__all__ = ["PARTITIONS", "SHIFTS", "FederatedData", "Source", "build", "describe", "load", "manifest", "names"]
