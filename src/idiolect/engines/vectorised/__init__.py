"""Clients in chunks, each chunk computed together by ``torch.func.vmap``."""

from idiolect.engines.vectorised.engine import Vectorised

__all__ = ["Vectorised"]
