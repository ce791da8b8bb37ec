"""A site's answers in secure aggregation. Keys serve for one answer, so that no two answers can be compared.

A site that runs all the time keeps keys in memory alone: after a start it has none for the round before. Where each
message may meet a new process, they are kept in the state folder, with the answers that they were used for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from idiolect.core.documents import read_json
from idiolect.core.errors import InputError
from idiolect.federation.messages import Message, Refusal, pack, question_bytes
from idiolect.federation.secure_aggregation.masking import Masking
from idiolect.federation.trust.kits import Identity
from idiolect.federation.trust.private_files import write_json

SUM = "sum.state"
"""The file of a sum's keys and answers, where these are kept."""
_FILE = "opened.json"
_PARTS = "/"
Answer = tuple[dict[str, Any], dict[str, Tensor]]


class Keeper(Protocol):
    """Keeps a message in a file that nobody else can change: the site's vault."""

    def save(self, path: Path, content: bytes) -> None:
        """Write a message."""

    def load(self, path: Path, about: Mapping[str, Any], fix: str) -> Message:
        """The message in a file whose plain values are ``about``, and maybe more."""


@dataclass
class _Sum:
    round: int
    masking: Masking
    answers: dict[str, tuple[bytes, Answer]] = field(default_factory=dict)
    """By kind, with the digest of the question."""


class SiteSums:
    """The sums that a site takes part in: for each method and seed of the last run that of the last round.

    Args:
        identity: the site's; None if there is no kit.
        least: sites of a sum.
        keeper: keeps keys between messages; None keeps them in memory.
    """

    def __init__(self, identity: Identity | None, least: int, keeper: Keeper | None = None) -> None:
        self._identity, self._least, self._keeper = identity, least, keeper
        self._sums: dict[tuple[Any, ...], _Sum] = {}

    def answer(self, message: Message, folder: Path) -> Answer:
        """The answer to a message "keys", "shares" or "opening".

        In the folder is noted of which sites a sum was opened.

        Raises:
            Refusal: the message is not one of this sum, or would give more away than the sum.
        """
        about = message.about
        if about["kind"] == "keys":
            if self._identity is None or not self._identity.peers:
                raise Refusal("this site's kit has no keys of the other sites: make new kits")
            run = _which(about)[:2]
            self._sums = {which: sum for which, sum in self._sums.items() if which[:2] == run}
            masking = Masking(self._identity, purpose_of(about), self._least)
            self._put(message, folder, _Sum(about["round"], masking))
            return {"keys": masking.keys._asdict()}, {}
        if about["kind"] == "shares":
            return self._once(message, folder, lambda masking: ({"sealed": masking.share(about["roster"])}, {}))
        sites = sorted(map(str, about["answered"]))
        opening = self._once(message, folder, lambda masking: (masking.opening(sites), {}))
        self._note(folder / _FILE, about["round"], sites)
        return opening

    def mask_upload(self, message: Message, arrays: Mapping[str, Tensor], folder: Path) -> dict[str, Tensor]:
        """An upload under the masks of its sum.

        Raises:
            Refusal: there are no keys for this round, or they were used for another upload.
        """
        shares = message.about.get("sealed")
        if not isinstance(shares, dict):
            raise Refusal("this study's uploads leave this site under masks only")
        return self._once(message, folder, lambda masking: ({}, masking.mask_arrays(arrays, shares)))[1]

    @staticmethod
    def forget(folder: Path) -> None:
        """Delete what is kept of the sums of a run, whose folder this is."""
        for path in folder.glob(f"*/{SUM}"):
            path.unlink(missing_ok=True)

    def _once(self, message: Message, folder: Path, answer: Callable[[Masking], Answer]) -> Answer:
        about = message.about
        sum = self._get(message, folder)
        if sum is None or sum.round != about["round"]:
            raise Refusal(f"this site has no keys for round {about['round']}: it has started again since")
        digest = hashlib.sha256(question_bytes(message)).digest()
        before = sum.answers.get(about["kind"])
        if before is not None and before[0] != digest:
            raise Refusal(f"this site has answered another question with the same keys ({about['kind']})")
        if before is None:
            sum.answers[about["kind"]] = before = digest, answer(sum.masking)
            self._put(message, folder, sum)  # before the answer leaves
        return before[1]

    def _put(self, message: Message, folder: Path, sum: _Sum) -> None:
        if self._keeper is None:
            self._sums[_which(message.about)] = sum
            return
        answers = {kind: [digest.hex(), values] for kind, (digest, (values, _)) in sum.answers.items()}
        arrays = {kind + _PARTS + path: a for kind, (_, (_, some)) in sum.answers.items() for path, a in some.items()}
        values = {"masking": sum.masking.record(), "answers": answers}
        self._keeper.save(folder / SUM, pack(_belonging(message.about) | values, arrays))

    def _get(self, message: Message, folder: Path) -> _Sum | None:
        if self._keeper is None:
            return self._sums.get(_which(message.about))
        if self._identity is None or not (folder / SUM).exists():
            return None
        try:
            content = self._keeper.load(folder / SUM, _belonging(message.about), "")
        except InputError:  # of another round, or changed
            return None
        answers: dict[str, tuple[bytes, Answer]] = {}
        for kind, (digest, values) in content.about["answers"].items():
            start = kind + _PARTS
            arrays = {path.removeprefix(start): a for path, a in content.arrays.items() if path.startswith(start)}
            answers[kind] = bytes.fromhex(digest), (values, arrays)
        masking = Masking.of_record(self._identity, content.about["masking"])
        return _Sum(message.about["round"], masking, answers)

    def _note(self, path: Path, round: int, sites: list[str]) -> None:
        """Note whose sum is opened: a second sum of the same round, over other sites, would show the difference."""
        entry: dict[str, Any] = read_json(path) if path.exists() else {"round": 0, "sites": []}
        if entry["round"] > round or (entry["round"] == round and entry["sites"] != sites):
            raise Refusal(f"a sum of round {entry['round']} was opened already, over other sites")
        write_json(path, {"round": round, "sites": sites})


def purpose_of(about: Mapping[str, Any]) -> list[Any]:
    """What keys are signed for."""
    return [*_which(about), about["round"]]


def _belonging(about: Mapping[str, Any]) -> dict[str, Any]:
    return {"sum": purpose_of(about)}


def _which(about: Mapping[str, Any]) -> tuple[Any, ...]:
    return about["digest"], about["run"], about["method"], about["seed"]
