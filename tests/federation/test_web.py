"""A server listens once it is entered, whatever loop Python would take, or says that it cannot."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import httpx
import pytest
from machines import port

from idiolect.core.errors import RunError
from idiolect.federation.link.exchange import Request, Response, json_response
from idiolect.federation.link.web import Server


class _Greeting:
    """Answers every request."""

    def visitor(self, certificate: bytes | None, address: str) -> str:
        return "somebody"

    def room(self, visitor: str, path: str, headers: Mapping[str, str]) -> int:
        return 100

    async def answer(self, request: Request) -> Response:
        return json_response(200, {"path": request.path})

    def on_refusal(self, address: str, why: str, visitor: str = "") -> None:
        raise AssertionError(why)


class _Proactor(asyncio.SelectorEventLoop):
    """Like the usual loop of Windows: it watches no socket by itself."""

    add_reader = asyncio.AbstractEventLoop.add_reader
    remove_reader = asyncio.AbstractEventLoop.remove_reader


def _served() -> str:
    place = ("127.0.0.1", port())
    with Server(_Greeting(), place, None):
        return str(httpx.get(f"http://127.0.0.1:{place[1]}/hello", timeout=5).json()["path"])


def test_it_listens_where_the_usual_loop_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio, "new_event_loop", _Proactor)
    assert _served() == "/hello"


def test_what_cannot_serve_says_so_and_frees_the_port(monkeypatch: pytest.MonkeyPatch) -> None:
    place = ("127.0.0.1", port())
    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "SelectorEventLoop", _Proactor)
        with (
            pytest.raises(RunError, match=r"cannot serve 127.0.0.1:\d+, because asyncio does not start \(NotImpl"),
            Server(_Greeting(), place, None),
        ):
            pass
    with Server(_Greeting(), place, None):
        assert httpx.get(f"http://127.0.0.1:{place[1]}/again", timeout=5).status_code == 200
