"""One thread for the computation of a process."""

from __future__ import annotations

import sys
from functools import lru_cache

import torch
from threadpoolctl import ThreadpoolController


class OneThread:
    """Inside, torch and the libraries under numpy and scipy compute on one thread, also in threads that start inside.

    With small batches, two threads wait for each other. Also, a server's step would use the cores of the workers, and
    sums would depend on the number of cores.
    """

    def __enter__(self) -> OneThread:
        self._torch, self._blas = torch.get_num_threads(), _libraries(len(sys.modules)).limit(limits=1, user_api="blas")
        torch.set_num_threads(1)
        return self

    def __exit__(self, *_: object) -> None:
        self._blas.restore_original_limits()
        torch.set_num_threads(self._torch)


@lru_cache(maxsize=1)
def _libraries(modules: int) -> ThreadpoolController:
    """The libraries in this process, as of so many modules that are loaded: to look for them takes milliseconds."""
    return ThreadpoolController()
