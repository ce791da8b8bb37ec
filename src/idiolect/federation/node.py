"""A site's end of the network: one connection, which the site opens, to Flower's link at the server.

This process speaks Flower's protocol itself. ``flower-supernode`` would fetch an app from the server and run it, which
is code from the network; here nothing that arrives is ever run.
"""

from __future__ import annotations

import secrets
import ssl
import threading
from collections.abc import Callable
from typing import NamedTuple

from idiolect.federation import flower  # first: it sets what flwr reads when it is imported

# isort: split
import httpx
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest, PullMessagesRequest, PushMessagesRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectPushError,
    pull_and_inflate_object_from_tree,
    push_objects,
)
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from idiolect.core.errors import InputError
from idiolect.federation.events import Events
from idiolect.federation.kits import SiteKit
from idiolect.federation.messages import Refused

Answer = Callable[[bytes], bytes]
"""The reply to a message of the server."""
_BEAT = 2.0  # seconds between two signs of life
_PROMISED = 20.0  # seconds within which the server hears of this site; Flower takes 10 or more
_WAITS = (0.5, 1.0, 2.0, 5.0)  # seconds before each new try to connect
_LOST = (httpx.HTTPError, ObjectPullError, ObjectPushError, RuntimeError, OSError)


class _Unsent(NamedTuple):
    reply: Message
    run: int


class _Withdrawn(Exception):
    """A message that the server has deleted while its parts were fetched: it no longer waits, or has asked anew."""


class _Named:
    """Says with each request to which connection it belongs: the server answers the site's last one alone."""

    def __init__(self) -> None:
        self._name = secrets.token_hex(8)

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        """Add the name to a request."""
        context.request.headers[flower.CONNECTION] = self._name
        return call_next(context)


class Connection:
    """A site's connection, opened again whenever it is lost.

    Args:
        kit: the site's.
        answer: what is done with a message.
        say: for events.
    """

    def __init__(self, kit: SiteKit, answer: Answer, say: Events) -> None:
        flower.quiet()
        self._kit, self._answer, self._say = kit, answer, say
        self._unsent: _Unsent | None = None
        self._tries = 0
        self._public = public_key_to_bytes(kit.key.public_key())

    def run(self, stop: threading.Event) -> None:
        """Answer messages until ``stop`` is set.

        Raises:
            InputError: the server is not who it should be, or does not know this site, or another program has connected
            as this site since.
        """
        while not stop.is_set():
            try:
                with self._client() as client:
                    self._connected(client, stop)
            except InputError:
                raise
            except _LOST as error:
                self._permanent(error)
                if self._tries == 0:
                    self._say(f"no connection to {self._kit.server} ({_why(error)}); trying again until there is one")
            stop.wait(_WAITS[min(self._tries, len(_WAITS) - 1)])
            self._tries += 1

    def _client(self) -> FleetHttpClient:
        key = self._kit.key
        authentication = NodeAuthHttpInterceptor(key, key.public_key())
        version = RuntimeVersionHttpInterceptor(component_name="SuperNode")
        return FleetHttpClient.from_server_address(
            self._kit.server, False, self._kit.ca, [version, authentication, _Named()]
        )

    def _connected(self, client: FleetHttpClient, stop: threading.Event) -> None:
        asked = ActivateNodeRequest(public_key=self._public, heartbeat_interval=_PROMISED)
        node = Node(node_id=client.ActivateNode(asked).node_id)
        self._tries = 0
        self._say(f"connected to {self._kit.server} as {self._kit.site}")
        over = threading.Event()
        beating = threading.Thread(target=self._beat, args=(client, node, over), daemon=True)
        beating.start()
        try:
            while True:
                if self._unsent is not None:
                    self._push(client, node, *self._unsent)
                    self._unsent = None
                if stop.is_set() or over.is_set():
                    break
                pulled = client.PullMessages(PullMessagesRequest(node=node))
                if pulled.messages_list:
                    self._work(client, node, pulled.message_object_trees[0], pulled.messages_list[0].metadata.run_id)
            if not stop.is_set():
                self._check(client, node)
        except _LOST:
            self._check(client, node)
            raise
        finally:
            over.set()
            beating.join(5)
            if stop.is_set():
                self._leave(client, node)

    def _work(self, client: FleetHttpClient, node: Node, tree: ObjectTree, run: int) -> None:
        found = make_pull_object_fn_protobuf(client.PullObject, node, run)

        def part(name: str) -> bytes:
            try:
                return found(name)
            except ObjectPullError as error:  # the server has it no more
                raise _Withdrawn from error

        try:
            message = pull_and_inflate_object_from_tree(
                tree,
                part,
                make_confirm_message_received_fn_protobuf(client.ConfirmMessageReceived, node, run),
                return_type=Message,
            )
        except _Withdrawn:
            return
        message.metadata.__dict__["_message_id"] = tree.object_id
        try:
            content = flower.body_of(message)
        except Refused as error:
            self._say(f"a message of the server was not understood: {error}")
            return
        reply = Message(flower.record(self._answer(content)), reply_to=message)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        self._unsent = _Unsent(reply, run)

    def _push(self, client: FleetHttpClient, node: Node, reply: Message, run: int) -> None:
        """Send a reply; one that the server no longer waits for is dropped by it."""
        objects = flower.get_all_nested_objects(reply)
        asked = PushMessagesRequest(
            node=node,
            messages_list=[message_to_proto(remove_content_from_message(reply))],
            message_object_trees=[flower.get_object_tree(reply)],
            clientapp_runtime_list=[0.0],
        )
        try:
            pushed = client.PushMessages(asked)
            put = make_push_object_fn_protobuf(client.PushObject, node, run, pushed.session_id)
            push_objects(objects, put, object_ids_to_push=set(pushed.objects_to_push))
        except (ObjectPushError, httpx.HTTPStatusError) as error:
            if _superseded(error):
                raise
            self._say(f"the server did not take a reply ({_why(error)})")

    def _beat(self, client: FleetHttpClient, node: Node, over: threading.Event) -> None:
        while not over.wait(_BEAT):
            try:
                client.SendNodeHeartbeat(SendNodeHeartbeatRequest(node=node, heartbeat_interval=_PROMISED))
            except _LOST as error:
                if not _superseded(error):  # else the next request says so, which is not this thread's
                    over.set()

    def _check(self, client: FleetHttpClient, node: Node) -> None:
        """Raise if another program has this site's place: connecting again would take it back, and so on."""
        try:
            client.SendNodeHeartbeat(SendNodeHeartbeatRequest(node=node, heartbeat_interval=_PROMISED))
        except _LOST as error:
            if _superseded(error):
                raise

    def _leave(self, client: FleetHttpClient, node: Node) -> None:
        try:
            client.DeactivateNode(DeactivateNodeRequest(node_id=node.node_id))
        except _LOST:
            return

    def _permanent(self, error: Exception) -> None:
        """Raise where trying again would not help."""
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, ssl.SSLCertVerificationError) or "CERTIFICATE_VERIFY_FAILED" in str(cause):
                raise InputError(
                    f"{self._kit.server} is not the server of this kit (its certificate: "
                    f"{getattr(cause, 'verify_message', '') or 'not signed by the kit'}): check the address, and that "
                    "site and server have kits that were made together"
                ) from None
            cause = cause.__cause__ or cause.__context__
        if _superseded(error):
            raise InputError(
                f"another program has connected to {self._kit.server} as {self._kit.site} since: a site runs once, so "
                "stop one of the two"
            ) from None
        if isinstance(error, httpx.HTTPStatusError) and error.request.url.path.endswith("/activate-node"):
            code = error.response.status_code
            if code in (400, 401, 403, 404, 409):
                raise InputError(
                    f"{self._kit.server} does not know the key of {self._kit.site} (or a clock is wrong by minutes): "
                    "ask its operator for a new kit"
                ) from None


def _superseded(error: Exception) -> bool:
    """Whether the server has closed a connection because the site has opened another one."""
    return isinstance(error, httpx.HTTPStatusError) and error.response.status_code == httpx.codes.GONE


def _why(error: Exception) -> str:
    if isinstance(error, httpx.HTTPStatusError):
        return f"HTTP {error.response.status_code}"
    return str(error) or type(error).__name__
