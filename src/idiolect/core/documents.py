"""Reads YAML and JSON from any source, within bounded time and memory, and says briefly what is wrong."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError
from yaml.events import AliasEvent
from yaml.nodes import MappingNode, Node, ScalarNode

from idiolect.core import files
from idiolect.core.errors import brief

_LARGEST = 2**19  # bytes of a YAML file
_DEEPEST = 100  # levels
_MOST = 20_000  # nodes; one that aliases repeat counts each time
_LETTERS = 64  # that many letters of a text count as a node
_DIGITS = 1000


def read_yaml(path: Path) -> Any:
    """The content of a YAML file.

    Raises:
        OSError: there is no such file, or it is not a regular file.
        ValueError: it is not YAML, or it is larger or deeper than any study.
    """
    return parse_yaml(files.read(path, _LARGEST).decode())


def parse_yaml(text: str) -> Any:
    """The content of a YAML text.

    Raises:
        ValueError: it is not YAML, or it is larger or deeper than any study.

    >>> parse_yaml("lr: 0.1")
    {'lr': 0.1}
    """
    if yaml.__with_libyaml__:
        with suppress(yaml.YAMLError):  # said below, in the same words whether there is LibYAML or not
            return yaml.load(text, _Quick)
    try:
        return yaml.load(text, _Bounded)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}: " if mark else ""
        raise ValueError(f"{where}{error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None


def read_json(path: Path) -> Any:
    """The content of a JSON file.

    Raises:
        OSError: there is no such file, or it is not a regular file.
        ValueError: it is not JSON, is nested too deeply, or has changed since it was sealed.
    """
    try:
        return json.loads(files.read(path).decode())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def sealed_json(content: dict[str, Any] | list[dict[str, Any]]) -> bytes:
    """A mapping, or a list of mappings, as sealed JSON: the seal is the last entry of the last mapping."""
    last = {"seal": files.UNSEALED}
    whole = content | last if isinstance(content, dict) else [*content[:-1], content[-1] | last]
    return files.sealed(json.dumps(whole, indent=1).encode())


class _Bounded(yaml.SafeLoader):
    """Stops at content that is too deep or too large, and says where a value has the wrong type."""

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
        if alias:  # an alias inside of what it repeats has no size yet: it never ends
            self._count += self._sizes.get(id(node), _MOST + 1)
        else:
            self._count += 1 + (len(node.value) // _LETTERS if isinstance(node, ScalarNode) else 0)
            self._sizes[id(node)] = self._count - before
        if self._count > _MOST:
            raise ComposerError(None, None, "it is larger than any study, or repeats itself without end", mark)
        return node

    def compose_mapping_node(self, anchor: Any) -> MappingNode:
        node = super().compose_mapping_node(anchor)
        names = set[str]()
        for key in (key for key, _ in node.value if isinstance(key, ScalarNode)):
            if key.value in names:
                sentence = f"{brief(key.value)} is given twice: leave one of them out"
                raise ComposerError(None, None, sentence, key.start_mark)
            names.add(key.value)
        return node

    def construct_object(self, node: Node, deep: bool = False) -> Any:
        kind = node.tag.rpartition(":")[2]
        with suppress(ValueError, LookupError, TypeError, AttributeError):  # what PyYAML raises for a bad value
            if kind not in ("int", "float") or len(node.value) <= _DIGITS:
                return super().construct_object(node, deep)
        what = {"timestamp": "date", "int": "whole number", "float": "number"}.get(kind, kind)
        sentence = f"{brief(node.value)} is not a valid {what}: put it in quotes if it is text"
        raise ConstructorError(None, None, sentence, node.start_mark)


class _Quick(_Bounded):
    """The same, but LibYAML takes the text apart, in a third of the time."""

    def __init__(self, stream: str) -> None:
        from yaml._yaml import CParser

        super().__init__(stream)
        parser = CParser(stream)
        for name in ("check_event", "peek_event", "get_event"):
            setattr(self, name, getattr(parser, name))
