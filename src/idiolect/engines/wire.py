"""Messages between an engine and its workers: pickles in which a tensor is an array, rebuilt in aligned memory."""

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
        return (_tensor, (value.detach().numpy(),)) if isinstance(value, Tensor) else NotImplemented


def _tensor(array: np.ndarray[Any, Any]) -> Tensor:
    return torch.tensor(array)


def send(connection: Connection, message: Any) -> None:
    """Send anything that pickles."""
    buffer = io.BytesIO()
    _Pickler(buffer, protocol=5).dump(message)
    connection.send_bytes(buffer.getbuffer())


def receive(connection: Connection) -> Any:
    """What the other side sent.

    Raises:
        EOFError: the other side is gone.
    """
    return pickle.loads(connection.recv_bytes())
