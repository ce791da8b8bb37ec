"""How samples are divided among clients: one module for each family of partitions."""

from idiolect.core.option_spec import public_functions
from idiolect.data.partitions import by_column, dominant, iid, label_skew, official, pathological
from idiolect.data.partitions.allocation import Rows, Split
from idiolect.data.partitions.division import divide, follows_a_column, partition_of
from idiolect.data.partitions.registry import BY_CLASS, PARTITIONS

for _family in (iid, label_skew, official, dominant, pathological, by_column):  # as they are listed
    PARTITIONS.update(public_functions(_family))
for _family in (label_skew, dominant, pathological):
    BY_CLASS.update(public_functions(_family))

__all__ = ["PARTITIONS", "Rows", "Split", "divide", "follows_a_column", "partition_of"]
