"""One thread for the computation of a process."""

from __future__ import annotations

import torch
from threadpoolctl import threadpool_limits


class OneThread:
    """Inside, torch and the libraries under numpy and scipy compute on one thread, also in threads that start inside.

    With small batches, two threads wait for each other. Also, a server's step would use the cores of the workers, and
    sums would depend on the number of cores.
    """

    def __enter__(self) -> OneThread:
        self._torch, self._blas = torch.get_num_threads(), threadpool_limits(1, "blas")
        torch.set_num_threads(1)
        return self

    def __exit__(self, *_: object) -> None:
        self._blas.restore_original_limits()
        torch.set_num_threads(self._torch)
