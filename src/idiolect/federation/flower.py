"""What server and sites use of the package flwr: its messages and their objects. flwr reports nothing to its makers."""

from __future__ import annotations

import logging
import os

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"  # read when flwr is imported

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, iterate_object_tree

from idiolect.federation.messages import Refused

__all__ = [
    "CONNECTION", "LIFE", "body_of", "get_all_nested_objects", "get_object_tree", "iterate_object_tree", "quiet",
    "record",
]  # fmt: skip

_PART = "message"
_WHOLE = 2**22  # bytes that go in one piece
LIFE = 30 * 86400.0
"""Seconds after which a message that nobody fetched is forgotten."""
CONNECTION = "idiolect-connection"
"""The header of a request that says to which of a site's connections it belongs."""


def record(content: bytes) -> RecordDict:
    """A message of ours as a record of Flower's: bytes, or an array of them, which Flower sends in pieces.

    Each piece is a request, and so is each record and each array: bytes save two of five.
    """
    if len(content) <= _WHOLE:
        return RecordDict({_PART: ConfigRecord({_PART: content})})
    return RecordDict({_PART: ArrayRecord({_PART: Array(np.frombuffer(content, np.uint8))})})


def body_of(message: Message) -> bytes:
    """Our message in one of Flower's.

    Raises:
        Refused: there is none.
    """
    try:
        if _PART in message.content.config_records:
            content = message.content.config_records[_PART][_PART]
            if not isinstance(content, bytes):
                raise TypeError
            return content
        return bytes(message.content.array_records[_PART][_PART].numpy().astype(np.uint8, casting="no").tobytes())
    except (KeyError, ValueError, TypeError, EOFError) as error:
        raise Refused(f"it holds no message of ours ({type(error).__name__})") from None


def quiet() -> None:
    """Keep Flower's own log, which would repeat each request, to errors."""
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    logging.getLogger("httpx").setLevel(logging.WARNING)
