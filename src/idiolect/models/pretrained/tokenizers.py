"""The tokenizer of a pretrained backbone, which divides texts as it has learnt them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from idiolect.core.errors import InputError
from idiolect.core.import_path import optional
from idiolect.models.pretrained import hugging_face
from idiolect.models.pretrained.settings import Pretrained, files_of, settings_of, spec_of

# L tokens of a text

Ids = NDArray[np.int32]


class Tokenizer:
    """A tokenizer of ``transformers``: the id of a token is the tokenizer's plus one, so that 0 means nothing.

    A tokenizer needs no token of its own for padding: what is filled up is never looked at.

    Args:
        name: of the backbone, as ``hf:NAME_OR_FOLDER``.

    Attributes:
        size: one more than the largest id.
        longest: the tokens that the backbone takes at most; None for any number.

    Raises:
        InputError: there is none, or it cannot be read.
    """

    def __init__(self, name: str) -> None:
        settings = settings_of(spec_of(name))
        self.name = name
        self._transformers = optional("transformers", "pretrained", settings.title)
        self._library, self.longest = _read(settings)
        self.size = len(self._library) + 1

    def __reduce__(self) -> tuple[Any, ...]:
        return tokenizer_of, (self.name,)

    def __repr__(self) -> str:
        return f"tokenizer_of({self.name!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tokenizer) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """For each text its ids (L,), with the tokenizer's marks for beginning and end."""
        if not len(texts):
            return []
        with hugging_face.quiet(self._transformers):  # it says that a text is longer than the backbone takes
            rows = self._library(list(texts), return_attention_mask=False, return_token_type_ids=False)["input_ids"]
        return [np.array(row, np.int32) + 1 for row in rows]

    def cut(self, id_L: Ids, most: int) -> Ids:
        """A text's first ids, with the mark for the end if there is one."""
        marks = {self._library.sep_token_id, self._library.eos_token_id}
        if most > 1 and int(id_L[-1]) - 1 in marks and int(id_L[most - 1]) - 1 not in marks:
            return np.concatenate([id_L[: most - 1], id_L[-1:]])
        return id_L[:most]

    def decode(self, id_L: Sequence[int]) -> str:
        """The text of some ids, without marks."""
        return str(self._library.decode([int(i) - 1 for i in id_L if i > 0], skip_special_tokens=True))


def tokenizer_of(model: str) -> Tokenizer:
    """The tokenizer of a pretrained model; a process reads each once.

    Raises:
        InputError: the model has none, or it cannot be read.
    """
    settings = settings_of(spec_of(model))
    weights = settings.weights if settings.weights is not None and os.path.isdir(settings.weights) else None
    name = f"{settings.library}:{settings.name}" + (f",weights={weights}" if weights else "")
    return _tokenizer(name, files_of(settings))


@lru_cache(maxsize=4)
def _tokenizer(name: str, files: object) -> Tokenizer:
    return Tokenizer(name)


def _read(settings: Pretrained) -> tuple[Any, int | None]:
    """The library's tokenizer, and the tokens that the network takes at most.

    Raises:
        InputError: there is none.
    """
    what = settings.title
    if settings.library != "hf":
        raise InputError(f"{what} takes images, and a text needs a tokenizer: name a backbone for texts, as hf:NAME")
    transformers = optional("transformers", "pretrained", what)
    place, _ = hugging_face.place_of(settings)
    with hugging_face.quiet(transformers):
        config = hugging_face.read(transformers.AutoConfig, place, what)
        tokenizer = hugging_face.read(transformers.AutoTokenizer, place, f"the tokenizer of {what}")
    limits = [tokenizer.model_max_length, getattr(config, "max_position_embeddings", None)]
    known = [int(limit) for limit in limits if isinstance(limit, int) and 0 < limit < 10**6]
    if getattr(config, "model_type", "") in ("roberta", "xlm-roberta", "camembert"):
        known = [min(known[0], known[-1] - 2)] if known else []  # two places are for padding
    return tokenizer, min(known, default=None)
