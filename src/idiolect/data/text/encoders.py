"""What a text is divided into, and the id of each piece: bytes, characters or words, on which sites need not agree."""

from __future__ import annotations

import re
import unicodedata
import zlib
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from idiolect.core.errors import InputError, listed

# L tokens of a text

Ids = NDArray[np.int32]

USUAL = "words"
"""The encoder for networks that have none of their own."""
MOST = 256
"""Tokens of a text that are used, unless another number is given."""
_PLAIN = 2**11
_WORDS = 2**14
_PIECES = re.compile(r"\w+|[^\w\s]")
_UNKNOWN = "\N{REPLACEMENT CHARACTER}"


@runtime_checkable
class Encoder(Protocol):
    """Makes ids of texts. The id 0 means "nothing" and fills up short texts; no encoder gives it to a token."""

    @property
    def name(self) -> str:
        """By which the same encoder is made again."""
        ...

    @property
    def size(self) -> int:
        """One more than the largest id."""
        ...

    @property
    def longest(self) -> int | None:
        """The tokens that the network behind it takes at most; None for any number."""
        ...

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """For each text its ids (L,), in 1..size-1."""
        ...

    def cut(self, id_L: Ids, most: int) -> Ids:
        """A text's ids shortened to ``most`` of them, which it has more of; a tokenizer keeps its mark for the end."""
        ...

    def decode(self, id_L: Sequence[int]) -> str:
        """The text of some ids, for people; what cannot be told is a replacement character."""
        ...


class _Plain:
    """An encoder that depends on nothing but its name."""

    name = ""
    size = 0
    longest: int | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return encoder_of, (self.name,)

    def __repr__(self) -> str:
        return f"encoder_of({self.name!r})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self)

    def __hash__(self) -> int:
        return hash(self.name)

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """For each text its ids (L,)."""
        return [self._ids(text) for text in texts]

    def cut(self, id_L: Ids, most: int) -> Ids:
        """The first ids."""
        return id_L[:most]

    def _ids(self, text: str) -> Ids:
        raise NotImplementedError


class Bytes(_Plain):
    """The bytes of UTF-8: id = byte + 1.

    >>> Bytes().encode(["Ab"])[0].tolist()
    [66, 99]
    """

    name = "bytes"
    size = 257

    def _ids(self, text: str) -> Ids:
        return np.frombuffer(text.encode("utf-8", "replace"), np.uint8).astype(np.int32) + 1

    def decode(self, id_L: Sequence[int]) -> str:
        """The text of some ids; half a character at the end is a replacement character."""
        return bytes(i - 1 for i in id_L if i > 0).decode("utf-8", "replace")


class Characters(_Plain):
    """The characters, composed (NFC): id = code point + 1 below 2,048, which has the alphabets from Latin to Arabic.

    All others share 2,048 more ids, by the last eleven bits of their code points.

    >>> Characters().encode(["Ab"])[0].tolist()
    [66, 99]
    """

    name = "characters"
    size = 1 + 2 * _PLAIN

    def _ids(self, text: str) -> Ids:
        plain = unicodedata.normalize("NFC", text).encode("utf-32-le", "surrogatepass")
        point_L = np.frombuffer(plain, np.uint32).astype(np.int32)
        return np.where(point_L < _PLAIN, point_L, _PLAIN + point_L % _PLAIN).astype(np.int32) + 1

    def decode(self, id_L: Sequence[int]) -> str:
        """The text of some ids; a character that shares its id is a replacement character."""
        return "".join(chr(i - 1) if i <= _PLAIN else _UNKNOWN for i in id_L if i > 0)


class Words(_Plain):
    """Words and marks in small letters (NFKC): id = 1 + CRC-32 of the word in UTF-8, modulo 16,384.

    Different words may share an id; no list of words has to be agreed on or shown.

    Source: the hashing of fastText (Joulin et al., 2017) and of Weinberger et al., Feature hashing for large scale
    multitask learning (ICML 2009).
    """

    name = "words"
    size = 1 + _WORDS

    def __init__(self) -> None:
        self._id_of: dict[str, int] = {}
        self._word_of: dict[int, str] = {}

    def _ids(self, text: str) -> Ids:
        words = _PIECES.findall(unicodedata.normalize("NFKC", text).casefold())
        known = self._id_of
        return np.array([known.get(word) or self._new(word) for word in words], np.int32)

    def _new(self, word: str) -> int:
        id = 1 + zlib.crc32(word.encode("utf-8", "replace")) % _WORDS
        self._id_of[word] = id
        if len(word) < len(self._word_of.get(id, word + " ")):
            self._word_of[id] = word
        return id

    def decode(self, id_L: Sequence[int]) -> str:
        """The words of these ids, with a space between them; of several with one id the shortest, mostly the usual."""
        return " ".join(self._word_of.get(int(i), _UNKNOWN) for i in id_L if i > 0)


ENCODERS = {kind.name: kind for kind in (Words, Characters, Bytes)}


def encoder_of(name: str) -> Encoder:
    """The encoder of this name; ``hf:NAME_OR_FOLDER`` is the tokenizer of a pretrained backbone.

    Raises:
        InputError: there is none.
    """
    if name.startswith("hf:"):
        from idiolect.models.pretrained import tokenizer_of  # texts of most studies need no such library

        return tokenizer_of(name)
    if name not in ENCODERS:
        raise InputError(f"tokens={name!r} is not known: give one of {listed(ENCODERS)}")
    return ENCODERS[name]()
