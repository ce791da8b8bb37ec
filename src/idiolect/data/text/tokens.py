"""Texts made into samples: rows of ids, filled up with 0 at the end."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from idiolect.core.errors import InputError, option
from idiolect.data.text.encoders import MOST, USUAL, Encoder, Ids, encoder_of

# R texts, L tokens

log = logging.getLogger(__name__)

_SHORT = 2**15  # ids below this are stored with 16 bits


@dataclass(frozen=True)
class Tokens:
    """How texts became the ids of a data set, so that other texts can become ids in the same way.

    Attributes:
        columns: of a table, those whose texts were joined, with a line end between them; () for a list of texts.
        encoder: what makes ids of a text.
        most: tokens of a text that are used.
    """

    columns: tuple[str, ...]
    encoder: Encoder
    most: int

    @property
    def size(self) -> int:
        """One more than the largest id."""
        return self.encoder.size


def tokens_of(tokens: str | Encoder | None, most: int | None, columns: Sequence[str] = ()) -> Tokens:
    """How texts become ids.

    Args:
        tokens: an encoder, or its name; None for the usual one.
        most: tokens of a text that are used; None for the usual number.
        columns: of a table.

    Raises:
        InputError: there is no such encoder, or the number is not possible.
    """
    if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
        raise InputError(f"max_tokens={most!r} is not possible: give a number of tokens above 0")
    encoder = encoder_of(USUAL if tokens is None else tokens) if tokens is None or isinstance(tokens, str) else tokens
    longest = encoder.longest
    if most is not None and longest is not None and most > longest:
        raise InputError(f"max_tokens={most} is more than {encoder.name} takes: give at most {longest}")
    return Tokens(tuple(columns), encoder, most or min(MOST, longest or MOST))


def ids_of(texts: Sequence[str], tokens: Tokens, where: str) -> Tensor:
    """The ids (R, L) of texts to learn from; L is the length of the longest, which is cut to ``tokens.most``.

    Args:
        texts: to encode.
        tokens: says how.
        where: the texts are, for messages.

    Raises:
        InputError: no text has a token.
    """
    encoder = tokens.encoder
    rows = encoder.encode(texts)
    count_R = look(rows, tokens, where)
    return filled_up(rows, encoder, min(tokens.most, int(count_R.max())))


def look(rows: Sequence[Ids], tokens: Tokens, where: str, *, advice: bool = True) -> NDArray[np.int64]:
    """The number of ids of each text to learn from, (R,); warns of texts that are empty, and of those that are cut.

    Args:
        rows: the ids of each text.
        tokens: says how many are used.
        where: the texts are, for messages.
        advice: whether whoever reads this decides how many are used.

    Raises:
        InputError: no text has a token.
    """
    encoder = tokens.encoder
    count_R = np.array([len(id_L) for id_L in rows], np.int64)
    if not count_R.any():
        raise InputError(f"the texts of {where} are all empty: give texts to learn from")
    if empty := int((count_R == 0).sum()):
        log.warning(
            "%s: %d of %d texts are empty (the first is row %d, counting from 0) and all look alike: remove these rows "
            "if nothing is to be learnt from them",
            where, empty, len(rows), int(np.flatnonzero(count_R == 0)[0]),
        )  # fmt: skip
    if cut := int((count_R > tokens.most).sum()):
        log.warning(
            "%s: %d of %d texts have more than %d %s and are cut (the longest has %d)%s",
            where, cut, len(rows), tokens.most, unit(encoder), count_R.max(),
            _advice(int(count_R.max()), encoder.longest) if advice and tokens.most != encoder.longest else "",
        )  # fmt: skip
    return count_R


def unit(encoder: Encoder) -> str:
    """What its tokens are called, as "words"."""
    return "tokens" if ":" in encoder.name else encoder.name


def filled_up(rows: Sequence[Ids], encoder: Encoder, width: int) -> Tensor:
    """Ids of texts as (R, width), 0 after the end of each, longer ones cut; int16 if they fit into it, else int32."""
    id_RL = np.zeros((len(rows), width), np.int16 if encoder.size <= _SHORT else np.int32)
    for r, id_L in enumerate(rows):
        kept_L = id_L if len(id_L) <= width else encoder.cut(id_L, width)
        id_RL[r, : len(kept_L)] = kept_L
    return torch.from_numpy(id_RL)


def _advice(most: int, takes: int | None) -> str:
    """How to use all tokens of the longest text, or as many as the network behind the encoder takes."""
    if takes is None or most <= takes:
        return f": give {option('max_tokens', most)} to use all"
    return f": give {option('max_tokens', takes)} to use as many as the network takes"


def lengths(id_RL: Tensor) -> Tensor:
    """How many tokens each text has, (R,)."""
    return (id_RL != 0).sum(1)
