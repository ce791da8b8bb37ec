"""A site's answers in secure aggregation. Keys serve for one answer, so that no two answers can be compared."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from idiolect.core.documents import read_json
from idiolect.federation.messages import Message, Refusal, question_bytes
from idiolect.federation.secure_aggregation.masking import Masking
from idiolect.federation.trust.kits import Identity
from idiolect.federation.trust.private_files import write_json

_FILE = "opened.json"
Answer = tuple[dict[str, Any], dict[str, Tensor]]


@dataclass
class _Sum:
    round: int
    masking: Masking
    answers: dict[str, tuple[bytes, Answer]] = field(default_factory=dict)
    """By kind, with the digest of the question."""


class SiteSums:
    """The sums that a site takes part in: for each method and seed that of the last round.

    Args:
        identity: the site's; None if there is no kit.
        least: sites of a sum.
    """

    def __init__(self, identity: Identity | None, least: int) -> None:
        self._identity, self._least = identity, least
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
            masking = Masking(self._identity, purpose_of(about), self._least)
            self._sums[_which(about)] = _Sum(about["round"], masking)
            return {"keys": masking.keys._asdict()}, {}
        if about["kind"] == "shares":
            return self._once(message, lambda masking: ({"sealed": masking.share(about["roster"])}, {}))
        sites = sorted(map(str, about["answered"]))
        opening = self._once(message, lambda masking: (masking.opening(sites), {}))
        self._note(folder / _FILE, about["round"], sites)
        return opening

    def mask_upload(self, message: Message, arrays: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """An upload under the masks of its sum.

        Raises:
            Refusal: there are no keys for this round, or they were used for another upload.
        """
        shares = message.about.get("sealed")
        if not isinstance(shares, dict):
            raise Refusal("this study's uploads leave this site under masks only")
        return self._once(message, lambda masking: ({}, masking.mask_arrays(arrays, shares)))[1]

    def _once(self, message: Message, answer: Any) -> Answer:
        about = message.about
        sum = self._sums.get(_which(about))
        if sum is None or sum.round != about["round"]:
            raise Refusal(f"this site has no keys for round {about['round']}: it has started again since")
        digest = hashlib.sha256(question_bytes(message)).digest()
        before = sum.answers.get(about["kind"])
        if before is not None and before[0] != digest:
            raise Refusal(f"this site has answered another question with the same keys ({about['kind']})")
        if before is None:
            sum.answers[about["kind"]] = before = digest, answer(sum.masking)
        return before[1]

    def _note(self, path: Path, round: int, sites: list[str]) -> None:
        """Note whose sum is opened: a second sum of the same round, over other sites, would show the difference."""
        entry: dict[str, Any] = read_json(path) if path.exists() else {"round": 0, "sites": []}
        if entry["round"] > round or (entry["round"] == round and entry["sites"] != sites):
            raise Refusal(f"a sum of round {entry['round']} was opened already, over other sites")
        write_json(path, {"round": round, "sites": sites})


def purpose_of(about: Mapping[str, Any]) -> list[Any]:
    """What keys are signed for."""
    return [*_which(about), about["round"]]


def _which(about: Mapping[str, Any]) -> tuple[Any, ...]:
    return about["digest"], about["run"], about["method"], about["seed"]
