"""Messages between an engine and its workers: pickles; tensors are sent as bytes and rebuilt in aligned memory."""

from __future__ import annotations

import io
import pickle
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from torch import Tensor


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return NotImplemented
        if value.is_meta:  # a form without content
            return _form, (tuple(value.shape), value.dtype)
        flat = value.detach().reshape(-1).view(torch.uint8)
        return _tensor, (flat.numpy(), value.dtype, tuple(value.shape))


def _form(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _tensor(flat: np.ndarray[Any, Any], dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    return torch.tensor(flat).view(dtype).view(shape)


def pack(message: Any) -> memoryview:
    """Anything that can be pickled, as a message for ``send``."""
    buffer = io.BytesIO()
    _Pickler(buffer, protocol=5).dump(message)
    return memoryview(buffer.getvalue())  # no view of the buffer: Python 3.13 complains if both are garbage together


def send(connection: Connection, message: memoryview) -> None:
    """Send a message that ``pack`` made.

    Raises:
        OSError: the other side is gone.
    """
    connection.send_bytes(message)


def load(message: bytes) -> Any:
    """The content of a message."""
    return pickle.loads(message)


def receive(connection: Connection) -> Any:
    """The message that the other side sent.

    Raises:
        EOFError, OSError: the other side is gone.
    """
    return load(connection.recv_bytes())
