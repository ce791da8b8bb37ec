"""Clients in chunks, each chunk as one, by ``torch.func.vmap``."""

from idiolect.engines.vectorised.engine import Vectorised

__all__ = ["Vectorised"]
