"""The server's part in secure aggregation: it carries keys and shares between sites, and opens the sum alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.method import Up
from idiolect.core.reduction import Additions
from idiolect.federation.events import Events
from idiolect.federation.messages import Message, Refusal, trees_of
from idiolect.federation.rounds.checks import Form, report_of
from idiolect.federation.rounds.conversation import Conversation, Patience, Question
from idiolect.federation.secure_aggregation.masking import Keys, flat, threshold, unflat, unmask, verify_keys
from idiolect.federation.secure_aggregation.site_sums import purpose_of
from idiolect.simulation import summing
from idiolect.simulation.client_runner import LocalResult
from idiolect.simulation.summing import LEAST


class SecureSum:
    """Asks sites for a sum of uploads.

    Args:
        conversation: asks the sites.
        public: the public key of each site in PEM, by name.
        patience: when the server stops waiting.
        say: for events.
    """

    def __init__(
        self, conversation: Conversation, public: Mapping[str, bytes], patience: Patience, say: Events
    ) -> None:
        self._talk, self._public, self._patience, self._say = conversation, public, patience, say

    def __call__(
        self, questions: Mapping[int, Question], form: Form, stop: Callable[[], bool],
        on_upload: Callable[[Message], None], count: int,
    ) -> dict[int, LocalResult]:  # fmt: skip
        """The sites of the sum of a round; with the first of them comes the sum, as that of all participants.

        Empty if too few sites stayed: nothing is learned then, and the round changes nothing.

        Args:
            questions: to each client, as without secure aggregation.
            form: of what the method sends.
            stop: whether to stop.
            on_upload: is told of each upload that comes.
            count: how many participants the round has.

        Raises:
            RunError: fewer sites than are needed can answer.
            Interrupted: ``stop`` returned true.
        """
        about = {k: v for k, v in next(iter(questions.values())).about.items() if k not in ("kind", "kept")}
        least = max(LEAST, min(self._patience.least, len(questions)))
        names = {i: self._talk.sites[i] for i in questions}

        def ask(
            kind: str, of: Mapping[int, dict[str, Any]], take: Callable[[int, Message], Any], least: int = 0
        ) -> Any:
            each = {
                i: Question((dict(questions[i].about) if kind == "local" else about) | {"kind": kind} | more,
                            questions[i].arrays if kind == "local" else {})
                for i, more in of.items()
            }  # fmt: skip
            before = {} if kind == "keys" else self._talk.refusals
            answers = self._talk.ask(each, take, self._patience._replace(least=least), stop)
            self._talk.refusals = before | self._talk.refusals  # of all four questions
            return answers

        def keys_of(i: int, message: Message) -> Keys:
            if names[i] not in self._public:
                raise Refusal(f"the key of {names[i]} is revoked")
            return verify_keys(names[i], self._public[names[i]], purpose_of(about), message.about.get("keys"))

        try:
            keys: dict[int, Keys] = ask("keys", {i: {} for i in questions}, keys_of, least)
            roster = {names[i]: statement._asdict() for i, statement in keys.items()}
            self._enough(len(keys), roster)
            boxes: dict[int, dict[str, str]] = ask(
                "shares",
                {i: {"roster": roster} for i in keys},
                lambda i, m: _texts(m, "sealed", set(roster) - {names[i]}),
            )
            self._enough(len(boxes), roster)

            def upload(i: int, message: Message) -> tuple[dict[str, Tensor], dict[str, float]]:
                on_upload(message)
                whole = tree.map(lambda a: torch.zeros(a.shape, dtype=torch.int64), form.up)
                trees_of(message.arrays, whole._asdict())
                return message.arrays, report_of(message, form.info)

            others = {i: {"sealed": {names[j]: boxes[j][names[i]] for j in boxes if j != i}} for i in boxes}
            uploads: dict[int, tuple[dict[str, Tensor], dict[str, float]]] = ask("local", others, upload)
            self._enough(len(uploads), roster)
            senders = sorted(names[i] for i in uploads)
            dropouts = sorted(names[i] for i in boxes if i not in uploads)
            owners = {"seeds": set(senders), "keys": set(dropouts)}
            shares: dict[int, dict[str, dict[str, str]]] = ask(
                "opening", {i: {"answered": senders} for i in uploads},
                lambda i, m: {part: _texts(m, part, some, whole=False) for part, some in owners.items()},
            )  # fmt: skip
            self._enough(len(shares), roster)
            arrays = [arrays for arrays, _ in uploads.values()]
            total = sum(flat(some) for some in arrays[1:]) + flat(arrays[0])
            shares_by_part = {
                part: {site: [s[part][site] for s in shares.values() if site in s[part]] for site in some}
                for part, some in owners.items()
            }
            whole = unmask(total, {names[i]: k for i, k in keys.items()}, senders, dropouts, shares_by_part)
            up = _read(unflat(whole, arrays[0]), form.up)
        except Refusal as error:
            where = f"{about['method']}, seed {about['seed']}: round {about['round']}"
            self._say(f"{where} changes nothing: {error}", round=about["round"], refused=str(error))
            return {}
        round, root = (
            torch.tensor(about["round"]),
            Additions.root(count, summing.sums_of(up), summing.like(form.up)),
        )
        return {
            i: LocalResult(
                round, Up(), {name: torch.tensor(value) for name, value in info.items()}, () if k else (root,)
            )
            for k, (i, (_, info)) in enumerate(uploads.items())
        }

    @staticmethod
    def _enough(sites: int, roster: Mapping[str, Any]) -> None:
        least = max(LEAST, threshold(len(roster)))
        if sites < least:
            raise Refusal(f"{sites} of {len(roster)} sites stayed, and it takes {least} to open a sum")


def _read(arrays: Mapping[str, Tensor], like: Up) -> Up:
    """The sum as an upload of whole numbers."""
    whole = tree.map(lambda a: torch.zeros(a.shape, dtype=torch.int64), like)
    up = Up(**trees_of(arrays, whole._asdict()))
    if any(bool((a < 0).any()) for a in tree.leaves(up.weight)):
        raise Refusal("the sum of the weights is negative, so a site sent something else")
    return up


def _texts(message: Message, part: str, sites: set[str], *, whole: bool = True) -> dict[str, str]:
    texts = message.about.get(part)
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
        raise Refusal(f"{part} is not a table of texts")
    if not set(texts) <= sites or (whole and set(texts) != sites):
        raise Refusal(f"{part} is of other sites")
    return texts
