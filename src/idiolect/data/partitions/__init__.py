"""How samples are divided among clients."""

from idiolect.data.partitions.allocation import Rows, Split
from idiolect.data.partitions.families import PARTITIONS

__all__ = ["PARTITIONS", "Rows", "Split"]
