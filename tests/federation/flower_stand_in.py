"""A stand-in for the few names of Flower's public interface that idiolect uses, for where Flower is not installed.

It has the names, arguments and attributes that flwr 1.39 and 1.42 have; ``test_flower_itself.py`` uses Flower's own.
"""

from __future__ import annotations

import itertools
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest


@dataclass
class Array:
    dtype: str
    shape: tuple[int, ...]
    stype: str
    data: bytes


class ArrayRecord(dict[str, Array]):
    pass


class ConfigRecord(dict[str, Any]):
    pass


class RecordDict(dict[str, Any]):
    @property
    def config_records(self) -> dict[str, ConfigRecord]:
        return {name: one for name, one in self.items() if isinstance(one, ConfigRecord)}

    @property
    def array_records(self) -> dict[str, ArrayRecord]:
        return {name: one for name, one in self.items() if isinstance(one, ArrayRecord)}


@dataclass
class Error:
    reason: str
    code: int = 0


@dataclass
class Metadata:
    dst_node_id: int
    message_type: str
    group_id: str = ""
    message_id: str = ""
    reply_to_message_id: str = ""


class Message:
    def __init__(
        self, content: RecordDict | Error, dst_node_id: int = 0, message_type: str = "", *, group_id: str = "",
        reply_to: Message | None = None,
    ) -> None:  # fmt: skip
        self.content: Any = content
        self.error: Any = content
        answered = "" if reply_to is None else reply_to.metadata.message_id
        self.metadata = Metadata(dst_node_id, message_type, group_id, reply_to_message_id=answered)

    def has_error(self) -> bool:
        return isinstance(self.content, Error)


@dataclass
class Context:
    node_id: int
    node_config: Mapping[str, Any]
    run_config: Mapping[str, Any]


class ClientApp:
    def __init__(self) -> None:
        self.functions: dict[str, Callable[[Message, Context], Message]] = {}

    def _taking(self, kind: str) -> Any:
        return lambda function: self.functions.setdefault(kind, function)

    def query(self) -> Any:
        return self._taking("query")

    def train(self) -> Any:
        return self._taking("train")

    def __call__(self, message: Message, context: Context) -> Message:
        return self.functions[message.metadata.message_type](message, context)


class ServerApp:
    def main(self) -> Any:
        return lambda function: setattr(self, "function", function)

    def __call__(self, grid: Any, context: Context) -> None:
        self.function(grid, context)  # type: ignore[attr-defined]


@dataclass
class Node:
    """A SuperNode: it calls its app at once."""

    node_id: int
    app: ClientApp
    node_config: dict[str, Any]
    last_activated_at: str = "first"
    online: bool = True
    spoil: Callable[[Message, Message], Message | None] = lambda asked, reply: reply
    asked: list[Message] = field(default_factory=list)


class Grid:
    def __init__(self, nodes: Iterable[Node], run_config: Mapping[str, Any]) -> None:
        self.nodes = {node.node_id: node for node in nodes}
        self.run_config, self._replies, self._ids = dict(run_config), {}, itertools.count(1)  # type: ignore[var-annotated]

    def get_nodes(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.online]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            node = self.nodes[message.metadata.dst_node_id]
            message.metadata.message_id = id = str(next(self._ids))
            node.asked.append(message)
            context = Context(node.node_id, node.node_config, self.run_config)
            reply = node.spoil(message, node.app(message, context))
            if reply is not None:
                self._replies[id] = reply
            ids.append(id)
        return ids

    def pull_messages(self, ids: Iterable[str]) -> list[Message]:
        return [self._replies.pop(id) for id in list(ids) if id in self._replies]


def install(patch: pytest.MonkeyPatch) -> None:
    """Let ``import flwr`` find the stand-in until the test ends."""
    names = {
        "flwr": (),
        "flwr.app": (Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict),
        "flwr.clientapp": (ClientApp,),
        "flwr.serverapp": (Grid, ServerApp),
    }
    for name, members in names.items():
        module = types.ModuleType(name)
        for member in members:
            setattr(module, member.__name__, member)
        patch.setitem(sys.modules, name, module)
    forget()


def forget() -> None:
    """Let what has imported the stand-in, or Flower, be imported anew."""
    for name in [name for name in sys.modules if name.startswith("idiolect.federation.flower")]:
        del sys.modules[name]
    if (parent := sys.modules.get("idiolect.federation")) is not None:
        parent.__dict__.pop("flower", None)
