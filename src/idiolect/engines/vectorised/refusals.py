"""What torch refuses to compute for several clients at once, said of the method and with a way out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from idiolect.core.errors import IdiolectError, place

_MASK = "use tree.when, or a mask"
_REFUSALS = (
    ("data-dependent control flow", "decides by a tensor, as with if, while, break, max or assert", _MASK),
    (
        r"calling \.item\(\)|access data pointer|detach views in-place",
        "takes a number out of a tensor, as with item, float, int, range, tolist or a slice",
        f"compute with tensors, {_MASK}",
    ),
    (
        "dynamic shape|differently shaped|nonzero_numpy",
        "makes a tensor whose size depends on the data, as by a boolean index, nonzero or unique",
        f"{_MASK}: what is absent has weight zero",
    ),
    ("aten::equal|allclose", "asks whether tensors are equal", _MASK),
    ("randomness error mode", "draws without its key", "draw with the functions of idiolect.core.keys"),
    ("inplace arithmetic", "writes into a tensor that is not a client's own", "write x = x + y, not x += y"),
    ("must only return Tensors", "returns something that is not a tensor", "return tensors alone"),
)
_OURS = re.compile(r"\bvmap\b|Batching rule not implemented|access data pointer|detach views in-place")
_ADVICE = re.compile(r"[^.]*\b(file an issue|file a bug report)\b.*", re.DOTALL)


class MapRefusal(Exception):
    """What a function of a method does that cannot be computed for several clients at once, and what to do instead."""


@contextmanager
def naming_refusal(function: str) -> Iterator[None]:
    """Turn torch's refusal to map a function of a method over clients into one that names the function.

    Raises:
        MapRefusal: torch refused.
    """
    try:
        yield
    except IdiolectError:
        raise
    except (RuntimeError, ValueError) as error:
        text = " ".join(str(error).split())
        if not _OURS.search(text):
            raise
        for pattern, what, instead in _REFUSALS:
            if re.search(pattern, text):
                raise MapRefusal(f"{function} {what}{place(error)}: {instead}") from error
        reason = _ADVICE.sub("", text).removeprefix("vmap: ").strip(" .")
        raise MapRefusal(
            f"{function} does what torch.func.vmap cannot{place(error)} ({reason}): write it otherwise"
        ) from error
