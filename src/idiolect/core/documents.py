"""YAML and JSON from anybody: read within bounded time and memory, and what is wrong said in a few words."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError
from yaml.events import AliasEvent
from yaml.nodes import Node, ScalarNode

from idiolect.core import files
from idiolect.core.errors import brief

_LARGEST = 2**19  # bytes of a YAML file
_DEEPEST = 100  # levels
_MOST = 20_000  # nodes, those that aliases repeat counted each time
_LETTERS = 64  # of a text count as a node
_DIGITS = 1000


def read_yaml(path: Path) -> Any:
    """What a YAML file holds.

    Raises:
        OSError: there is no such file, or it is none.
        ValueError: it is no YAML, or larger or deeper than any study.
    """
    return parse_yaml(files.read(path, _LARGEST).decode())


def parse_yaml(text: str) -> Any:
    """What a YAML text says.

    Raises:
        ValueError: it is no YAML, or larger or deeper than any study.

    >>> parse_yaml("lr: 0.1")
    {'lr': 0.1}
    """
    try:
        return yaml.load(text, _Bounded)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}: " if mark else ""
        raise ValueError(f"{where}{error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None


def read_json(path: Path) -> Any:
    """What a JSON file holds.

    Raises:
        OSError: there is no such file, or it is none.
        ValueError: it is no JSON, nested too deeply, or has changed since it was sealed.
    """
    try:
        return json.loads(files.read(path).decode())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def sealed_json(content: dict[str, Any] | list[dict[str, Any]]) -> bytes:
    """A mapping as JSON, or a list of them, sealed: the seal is the last thing of the last mapping."""
    last = {"seal": files.UNSEALED}
    whole = content | last if isinstance(content, dict) else [*content[:-1], content[-1] | last]
    return files.sealed(json.dumps(whole, indent=1).encode())


class _Bounded(yaml.SafeLoader):
    """Stops at what is too deep or too large, and says where a value is not of its kind."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = self._count = 0
        self._sizes: dict[int, int] = {}

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        alias, before = self.check_event(AliasEvent), self._count
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ComposerError(None, None, f"more than {_DEEPEST} levels are nested", mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if alias:  # one inside of what it repeats has no size yet, and no end
            self._count += self._sizes.get(id(node), _MOST + 1)
        else:
            self._count += 1 + (len(node.value) // _LETTERS if isinstance(node, ScalarNode) else 0)
            self._sizes[id(node)] = self._count - before
        if self._count > _MOST:
            raise ComposerError(None, None, "it says more than a study can, or repeats itself without end", mark)
        return node

    def construct_object(self, node: Node, deep: bool = False) -> Any:
        kind = node.tag.rpartition(":")[2]
        with suppress(ValueError, LookupError, TypeError, AttributeError):  # what PyYAML makes of a value that is none
            if kind not in ("int", "float") or len(node.value) <= _DIGITS:
                return super().construct_object(node, deep)
        what = {"timestamp": "date", "int": "whole number", "float": "number"}.get(kind, kind)
        said = f"{brief(node.value)} is no valid {what}: put it in quotes if it is a text"
        raise ConstructorError(None, None, said, node.start_mark)
