"""What a round leaves behind, as records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from idiolect.core import tree
from idiolect.core.errors import CodeError
from idiolect.core.method import Down, Info
from idiolect.simulation.interfaces import Record
from idiolect.simulation.reception import Note


def of_clients(number: int, infos: Iterable[tuple[int, Info]]) -> list[Record]:
    """What participants report of their training."""
    return [Record(number, i, "local", name, float(value)) for i, info in infos for name, value in info.items()]


def of_wire(number: int, ids: Sequence[int], down: Down, rows: int, upload_bytes: int) -> list[Record]:
    """The bytes of a round for each participant.

    Args:
        number: of the round.
        ids: the participants.
        down: the message to them.
        rows: how many clients ``down`` addresses.
        upload_bytes: the bytes of an upload.
    """
    message_bytes = tree.nbytes(down.shared) + tree.nbytes(down.own) // rows
    pairs = (("bytes_down", message_bytes), ("bytes_up", upload_bytes))
    return [Record(number, i, "wire", metric, float(value)) for i in ids for metric, value in pairs]


def of_notes(number: int, notes: Iterable[Note]) -> list[Record]:
    """What was done to uploads."""
    return [Record(number, note.client, "server", note.metric, note.value) for note in notes]


def of_server(number: int, ids: Sequence[int], info: Info) -> list[Record]:
    """What the server reports: a value of each participant, or of each pair of them."""
    log = []
    for name, value in info.items():
        if value.ndim not in (1, 2) or any(axis != len(ids) for axis in value.shape):
            raise CodeError(
                f"round {number}, aggregate: info {name!r} has the shape {tuple(value.shape)}: the server reports a "
                f"number for each participant ({len(ids)},), or for each pair of them ({len(ids)}, {len(ids)})"
            )
        for i, row in zip(ids, value.tolist(), strict=True):
            columns = zip(ids, row, strict=True) if isinstance(row, list) else [(None, row)]
            log += [Record(number, i, "server", name, float(v), j) for j, v in columns]
    return log
