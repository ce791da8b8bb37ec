"""The partitions by name: the public functions of the modules that the package adds here.

To add a partition, write a public function with this signature into the module of its family, its options
keyword-only, annotated with their range: ``def name(source, clients, rng, sizes_K=None, *, option: Type = default) ->
Split``. A partition that does not choose the number of samples per client leaves ``sizes_K``, the clients' training
samples, out of its signature.

Label counts per client depend on how many samples a class has and not on their order, except for ``iid``: with the
same ``rng``, a data set whose samples are rearranged gives the same (training and test samples together, unless
``stratified``). ``dominant`` and ``pathological`` keep the class proportions of training and test samples equal.
"""

from __future__ import annotations

from collections.abc import Callable

from idiolect.core.errors import InputError
from idiolect.data.datasets.dataset import Source
from idiolect.data.partitions.allocation import Split

PARTITIONS: dict[str, Callable[..., Split]] = {}
BY_CLASS: set[str] = set()
"""Those that choose how many samples of each class a client has."""


def check_target(source: Source, name: str, partition: str, take: str) -> None:
    """Raise InputError if a partition by class is to divide numbers or several labels; ``take`` says what to take."""
    if source.targets is not None and name in BY_CLASS:
        raise InputError(
            f"partition {partition} divides classes, and this target is {source.targets.what}: take {take}"
        )
