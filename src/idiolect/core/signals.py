"""SIGINT and SIGTERM, noted or raised."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def received(error: Callable[[int], BaseException], *, raising: int = 2) -> Iterator[list[int]]:
    """The signals received so far; the one numbered ``raising`` and later ones raise ``error(number)`` at once.

    Within a second of that, more of them say the same, as from a supervisor that sends both kinds, and are only noted.
    Only the main thread takes signals: in another one there are none. The caller's handlers are put back.
    """
    came: list[int] = []
    quiet_until = 0.0

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal quiet_until
        came.append(number)
        if len(came) >= raising and time.monotonic() >= quiet_until:
            quiet_until = time.monotonic() + 1
            raise error(number)

    if threading.current_thread() is not threading.main_thread():
        yield came
        return
    old = {s: signal.signal(s, note) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield came
    finally:
        for s, handler in old.items():
            signal.signal(s, handler)
