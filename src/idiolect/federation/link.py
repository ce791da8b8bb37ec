"""The server's end of the network: Flower's link in this process, open to registered sites only.

``flower-superlink`` would serve the interfaces by which runs are started and keys registered on the same port, open to
everyone who reaches it, and would start a program for each run. Here only the interface for sites is served.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Any, NamedTuple, Self

from idiolect.federation import flower  # first: it sets what flwr reads when it is imported

# isort: split
import httpx
import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import Response
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID, SUPERLINK_NODE_ID
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest, PushMessagesRequest
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID, TaskType
from flwr.supercore.error import http_error_translator
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.protobuf.translation import ProtobufTranslationMiddleware
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.routers.fleet.node_auth import NodeAuthMiddleware
from flwr.superlink.routers.fleet.router import router
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint

from idiolect.core.errors import RunError
from idiolect.federation.kits import ServerKit
from idiolect.federation.messages import Refused

HOLD = 10.0
"""Seconds that a site's question for work stays open while there is none; so a message is fetched at once."""
_LOOK = 0.05  # seconds between two looks for work or for replies
_LARGEST = 2**26  # bytes of one request; Flower sends arrays in smaller pieces
_ROOM = 2**26  # bytes of a reply, besides _TIMES those of the question
_TIMES = 16
_KEEP = 20.0  # seconds between two signs of life of the run itself, without which Flower ends it


class Reply(NamedTuple):
    """What a site sent."""

    site: str
    ticket: str
    content: bytes | None
    """None: it cannot be read, and ``why`` says why."""
    why: str = ""


class Link:
    """Carries messages to sites and back, in the background, while it is entered.

    Args:
        kit: the server's.
        listen: host and port.

    Raises:
        RunError: the port is taken, or the certificate cannot be used.
    """

    def __init__(self, kit: ServerKit, listen: tuple[str, int]) -> None:
        flower.quiet()
        self._kit, self._listen = kit, listen
        factory = LinkStateFactory(FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), ObjectStoreFactory())
        self._state: Any = factory.state()
        self._site_of: dict[int, str] = {}
        self._node_of: dict[str, int] = {}
        for site, key in kit.sites.items():
            node = self._state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, key, 0, name=site)
            self._state.activate_node(node, _KEEP)  # Flower takes no message for a site that it has never seen
            self._state.deactivate_node(node)
            self._site_of[node], self._node_of[site] = site, node
        self._run = self._started()
        self._at: dict[str, tuple[str, float]] = {}
        self._made = time.monotonic()
        self._seen: dict[str, float] = {}
        self._connections = dict.fromkeys(kit.sites, 0)
        self._current: dict[int, str] = {}
        self._room: dict[int, int] = {}  # bytes that a site may still send
        self._alive = time.monotonic()
        config = uvicorn.Config(
            self._app(factory), host=listen[0], port=listen[1],
            ws="none", log_config=None, access_log=False, lifespan="off",
            ssl_certfile=str(kit.certificate), ssl_keyfile=str(kit.key), timeout_graceful_shutdown=1,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, name="link", daemon=True)
        self._failed: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        while not self._server.started:
            if not self._thread.is_alive():
                why = f" ({self._failed})" if self._failed and not isinstance(self._failed, SystemExit) else ""
                raise RunError(f"cannot listen on {self._listen[0]}:{self._listen[1]}{why}: is the port in use?")
            time.sleep(_LOOK)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        self._thread.join(3)

    def send(self, site: str, content: bytes) -> str:
        """Leave a message for a site; return the ticket that its reply will have."""
        message = Message(
            flower.record(content), dst_node_id=self._node_of[site], message_type="query", ttl=flower.LIFE
        )
        ticket: str = message.object_id
        message.metadata.__dict__["_message_id"] = ticket
        objects = flower.get_all_nested_objects(message)
        session = self._state.start_session(self._run)
        tree = flower.get_object_tree(message)
        # its parts first: a site that waits fetches a message as soon as it is there
        missing = self._state.preregister_object_tree(tree, session)
        for name in missing:
            self._state.store_object(self._run, session, name, objects[name].deflate())
        bare = remove_content_from_message(message)
        self._room[self._node_of[site]] = _ROOM + _TIMES * len(content)
        if self._state.store_message_ins(bare) is None:
            raise RunError(f"the message to {site} could not be sent: start the server again")
        self._at[ticket] = site, time.monotonic()
        return ticket

    def replies(self) -> list[Reply]:
        """The replies that have come since the last call."""
        now = time.monotonic()
        if now - self._alive > _KEEP:
            self._alive = now
            self._state.acknowledge_task_heartbeat(self._task)
        found = []
        for ticket, (site, _) in list(self._at.items()):
            if self._room[self._node_of[site]] < 0:
                found.append(Reply(site, ticket, None, "it has more bytes than any reply to this question needs"))
                self.forget([ticket])
                continue
            with self._state.lock:  # Flower stores a reply and the list of its parts one after the other
                answered = self._state.message_ins_id_to_message_res_id.get(ticket)
            if answered is None:
                continue
            reply = self._whole(site, ticket, answered)
            if reply is not None:
                found.append(reply)
                self.forget([ticket])
        return found

    def forget(self, tickets: Iterable[str]) -> None:
        """Take no reply to these messages any more."""
        for ticket in tickets:
            self._at.pop(ticket, None)
            with self._state.lock:  # a reply that comes now may have parts in common with what is deleted
                answered = self._state.message_ins_id_to_message_res_id.get(ticket)
                self._state.delete_messages({ticket})
                for name in (ticket, answered):
                    if name is not None:
                        self._state.object_store.delete(name)

    def quiet_for(self, site: str) -> float:
        """Seconds since a site was last heard of; since the link was made if it never was."""
        return time.monotonic() - self._seen.get(site, self._made)

    def connections(self, site: str) -> int:
        """How often a site has connected."""
        return self._connections[site]

    def _whole(self, site: str, ticket: str, answered: str) -> Reply | None:
        """A reply whose parts have all come, else None."""
        store = self._state.object_store
        try:
            parts = {}
            for part in flower.iterate_object_tree(store.get_object_tree(answered)):
                content = store.get(part.object_id)
                if not content:
                    return None
                parts[part.object_id] = content
            message = inflate_object_from_contents(answered, parts)
            if not isinstance(message, Message) or not message.has_content():
                raise Refused("it is not a message with content")
            return Reply(site, ticket, flower.body_of(message))
        except Exception as error:  # noqa: BLE001  whatever a hostile site can make Flower's decoder raise
            return Reply(site, ticket, None, str(error) or type(error).__name__)

    def _started(self) -> int:
        run: int = self._state.create_run(
            None, None, None, {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP
        )
        [about] = self._state.get_run_info(run_ids=[run])
        self._task = about.primary_task_id
        self._state.claim_task(self._task)
        self._state.activate_task(self._task)
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run, SUPERLINK_NODE_ID, self._task
        return run

    def _serve(self) -> None:
        try:
            self._server.run()
        except BaseException as error:  # noqa: BLE001  uvicorn ends with SystemExit where the port is taken
            self._failed = error

    def _app(self, factory: LinkStateFactory) -> FastAPI:
        app = FastAPI(
            docs_url=None, redoc_url=None, openapi_url=None,
            middleware=[
                Middleware(BaseHTTPMiddleware, dispatch=_bounded),
                Middleware(BaseHTTPMiddleware, dispatch=http_error_translator),
                Middleware(ProtobufTranslationMiddleware),
                Middleware(NodeAuthMiddleware),
                Middleware(BaseHTTPMiddleware, dispatch=self._guarded),
            ],
        )  # fmt: skip
        app.state.linkstate_factory = factory
        app.state.enable_supernode_auth = True
        app.include_router(router)
        return app

    async def _guarded(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        """Note who asks, who has proved by now to be a registered site, and let it do only what a site may."""
        asked = getattr(request.state, "protobuf_request", None)
        if isinstance(asked, ActivateNodeRequest):
            node = self._state.get_node_id_by_public_key(asked.public_key)
            if node in self._site_of:
                self._connections[self._site_of[node]] += 1
                self._current[node] = request.headers.get(flower.CONNECTION, "")
                self._state.deactivate_node(node)  # a site that was killed comes back before Flower has noticed
        else:
            node = getattr(getattr(asked, "node", None), "node_id", getattr(asked, "node_id", None))
        if node not in self._site_of:
            raise HTTPException(403)
        self._check_current(node, request)
        self._seen[self._site_of[node]] = time.monotonic()
        if isinstance(asked, PushMessagesRequest) and not all(
            message.metadata.src_node_id == node and message.metadata.reply_to_message_id
            for message in asked.messages_list
        ):
            raise HTTPException(403)  # Flower would let it speak for another, or for the server
        if isinstance(asked, PushObjectRequest):
            self._room[node] = self._room.get(node, 0) - len(asked.object_content)
            if self._room[node] < 0:
                raise HTTPException(413)
        if isinstance(asked, PullMessagesRequest):
            until = time.monotonic() + HOLD
            while time.monotonic() < until and not self._waiting(node) and not self._server.should_exit:
                await asyncio.sleep(_LOOK)
                self._check_current(node, request)
            self._seen[self._site_of[node]] = time.monotonic()
        return await call_next(request)

    def _check_current(self, node: int, request: Request) -> None:
        """Refuse what belongs to an earlier connection of a site.

        A site that was killed or cut off leaves an open question for work behind. This would take the next message, and
        nobody would get it.
        """
        name = request.headers.get(flower.CONNECTION, "")
        if self._current.get(node, name) != name:
            raise HTTPException(httpx.codes.GONE)

    def _waiting(self, node: int) -> bool:
        """Whether there is a message that a site has not fetched."""
        stored = self._state.message_ins_store.get
        mine = [stored(ticket) for ticket, (site, _) in list(self._at.items()) if self._node_of[site] == node]
        return any(one is not None and one.metadata.delivered_at == "" for one in mine)


async def _bounded(request: Request, call_next: RequestResponseEndpoint) -> Response:
    """Refuse what is too large before it is read."""
    size = request.headers.get("content-length", "")
    if not size.isdecimal() or int(size) > _LARGEST:
        return Response(status_code=413)
    return await call_next(request)


def listening(kit: ServerKit, listen: str | None) -> tuple[str, int]:
    """Where the server listens: as told, else on the port of its address and, unless that is this machine, everywhere.

    Raises:
        ValueError: it is not an address.
    """
    from idiolect.federation.kits import address

    if listen is not None:
        return address(listen)
    host, port = address(kit.server)
    return (host if host in ("127.0.0.1", "localhost", "::1") else "0.0.0.0"), port


__all__ = ["HOLD", "Link", "Reply", "listening"]
