"""What is said of clients that are drawn because the data have none."""

from __future__ import annotations

import logging

from idiolect.core.defaults import USUAL_PARTITION
from idiolect.core.errors import listed, option
from idiolect.core.option_spec import Spec
from idiolect.data import FederatedData, Source

log = logging.getLogger(__name__)


def warn_of_no_clients(federation: FederatedData, source: Source, partition: Spec) -> None:
    """Warn that the user's own data have no client column, and say what was done instead."""
    usual = Spec.parse(USUAL_PARTITION)
    size_K = [len(train) for train in federation.train[: federation.trained]]
    single = f" ({size_K.count(1)} with a single one)" if 1 in size_K else ""
    division = Spec(name=partition.name, options={k: v for k, v in partition.options.items() if k in usual.options})
    few = f" (of few texts: {listed(source.few)})" if source.few else ""
    log.warning(
        "no client column: %d clients are drawn by %s, with %d to %d training samples%s; if a column%s says which "
        "client a sample belongs to, give it with %s, else choose %s and %s",
        federation.clients, division, min(size_K), max(size_K), single, few,
        option("client_column"), option("clients"), option("partition"),
    )  # fmt: skip
