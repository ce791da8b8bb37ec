"""One thread for the numerics of a process."""

from __future__ import annotations

import torch
from threadpoolctl import threadpool_limits


class OneThread:
    """Inside, torch and the libraries under numpy and scipy compute on one thread, in threads begun there as well.

    Two threads on small batches wait for each other, a server's step would take the cores from the workers, and sums
    would depend on the number of cores.
    """

    def __enter__(self) -> OneThread:
        self._torch, self._blas = torch.get_num_threads(), threadpool_limits(1, "blas")
        torch.set_num_threads(1)
        return self

    def __exit__(self, *_: object) -> None:
        self._blas.restore_original_limits()
        torch.set_num_threads(self._torch)
