"""What travels: named arrays and a few plain values, as one document of safetensors. Nothing is ever pickled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from idiolect.core import tree
from idiolect.core.tree import T, Tree

_HEAD = 2**24  # bytes of names, shapes and plain values


class Refusal(ValueError):
    """A message is not what it should be; the text says why in a few words."""


class Message(NamedTuple):
    """One message, in either direction."""

    about: dict[str, Any]
    """Plain values, as in JSON; ``kind`` says what is asked."""
    arrays: dict[str, Tensor]
    """By path, for example ``shared/body/0.weight``."""


def pack(about: Mapping[str, Any], arrays: Mapping[str, Tensor] | None = None) -> bytes:
    """A message as bytes."""
    whole = {name: a.detach().contiguous().clone() for name, a in (arrays or {}).items()}
    return safetensors.torch.save(whole, metadata={"about": json.dumps(about, allow_nan=False)})


def head(content: bytes) -> dict[str, Any]:
    """The plain values of the message in some bytes.

    Raises:
        Refusal: there are none.
    """
    size = int.from_bytes(content[:8], "little")
    if size > _HEAD:
        raise Refusal("its head is too large")
    try:
        about = json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["about"], parse_constant=_no_number)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _no_message(error) from None
    if not isinstance(about, dict):
        raise Refusal("its plain values are not a mapping")
    return about


def unpack(content: bytes) -> Message:
    """The message in some bytes.

    Raises:
        Refusal: they are not a message.
    """
    about = head(content)
    try:
        return Message(about, safetensors.torch.load(content))
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError, OverflowError) as error:
        raise _no_message(error) from None


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number of JSON")


def _no_message(error: Exception) -> Refusal:
    return Refusal(f"it is not a document of named arrays ({type(error).__name__})")


def question_bytes(message: Message) -> bytes:
    """What a message asks, as bytes: the same if it is sent again with another ticket."""
    about = {name: value for name, value in message.about.items() if name != "ticket"}
    return json.dumps(about, sort_keys=True).encode() + pack({}, dict(sorted(message.arrays.items())))


def by_path(part: str, values: Tree) -> dict[str, Tensor]:
    """The tensors of a tree by their paths, under a name such as ``shared``."""
    return {f"{part}/{path}": leaf for path, leaf in tree.named(values).items()}


def trees_of(arrays: Mapping[str, Tensor], like: Mapping[str, T]) -> dict[str, T]:
    """The trees in a message, checked against trees of the right structure: every name, shape and type.

    Raises:
        Refusal: an array is missing, is not expected, or has another shape or type.
    """
    leaves = {path: leaf for part, values in like.items() for path, leaf in by_path(part, values).items()}
    if absent := sorted(leaves.keys() - arrays.keys()):
        raise Refusal(f"{absent[0]} is missing, with {len(absent)} arrays in all")
    if extras := sorted(arrays.keys() - leaves.keys()):
        raise Refusal(f"{extras[0]} is not expected, with {len(extras)} arrays in all")
    for path, leaf in leaves.items():
        array = arrays[path]
        if array.shape != leaf.shape or array.dtype != leaf.dtype:
            shapes = [f"{tuple(a.shape)} {str(a.dtype).removeprefix('torch.')}" for a in (array, leaf)]
            raise Refusal(f"{path} is {shapes[0]}, not {shapes[1]}")
    return {part: _tree(part, arrays, values) for part, values in like.items()}


def _tree(part: str, arrays: Mapping[str, Tensor], like: T) -> T:
    _, build = tree.flatten(like)
    return tree.copy(build([arrays[path] for path in by_path(part, like)]))
