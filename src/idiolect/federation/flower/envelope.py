"""A message of ours as the content of one of Flower's: its bytes as an array, with a few plain values beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

_VALUES, _CONTENT, _NAME = "idiolect", "content", "message"
Values = Mapping[str, str | int | bytes]


def fill(values: Values, content: bytes | None = None) -> RecordDict:
    """What Flower carries: large contents as an array, which it sends in pieces."""
    records = RecordDict({_VALUES: ConfigRecord(dict(values))})
    if content is not None:
        array = Array(dtype="uint8", shape=(len(content),), stype="bytes", data=content)
        records[_CONTENT] = ArrayRecord({_NAME: array})
    return records


def values_of(records: RecordDict) -> dict[str, Any]:
    """The plain values; none if there are none."""
    return dict(records.config_records.get(_VALUES, {}))


def content_of(records: RecordDict) -> bytes | None:
    """The bytes of the message, if there is one."""
    arrays = records.array_records.get(_CONTENT)
    return None if arrays is None or _NAME not in arrays else bytes(arrays[_NAME].data)
