"""What a program does with SIGINT and SIGTERM."""

from __future__ import annotations

import signal

import pytest

from idiolect.core import signals


class Stopped(Exception):
    pass


def test_the_second_one_raises_and_what_follows_at_once_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(signals.time, "monotonic", lambda: now[0])
    with signals.received(lambda number: Stopped(number)) as came:
        signal.raise_signal(signal.SIGINT)
        assert came == [signal.SIGINT]
        with pytest.raises(Stopped, match=str(int(signal.SIGTERM))):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)  # the program cleans up, and must not be interrupted in that
        now[0] += 1.5
        with pytest.raises(Stopped):
            signal.raise_signal(signal.SIGINT)
    assert len(came) == 4
