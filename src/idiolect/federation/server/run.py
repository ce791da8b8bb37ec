"""A run that sites have agreed on, as it is kept on the server's disk, and the sites that come after its start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import pydantic

from idiolect.core import files
from idiolect.core.documents import read_json, sealed_json
from idiolect.core.errors import InputError, listed, option
from idiolect.core.version import __version__
from idiolect.data import manifest
from idiolect.deploy.make import frequent
from idiolect.deploy.schema import Inputs
from idiolect.federation.data.agreement import Agreement, Offer, Sums, texts_of, unknown_texts
from idiolect.federation.data.backbone import Backbone
from idiolect.federation.events import Events
from idiolect.federation.messages import Message, Refusal
from idiolect.federation.rounds import checks
from idiolect.federation.rounds.conversation import Question
from idiolect.federation.rounds.study import digest
from idiolect.runs.store import renew

FILE = ".federation.json"
RELEASES = ".releases.jsonl"


class SiteRun(NamedTuple):
    """A run that sites have agreed on."""

    study: str
    run: str
    agreement: Agreement
    secret: int
    """The seed of the noise of differential privacy: who knows it can take the noise away."""
    texts: tuple[int, ...]
    """For each feature how many training samples of all sites have its text; 0 for numbers."""

    @property
    def about(self) -> dict[str, Any]:
        """What each message of a round says of the study and the run."""
        return {"digest": digest(self.study), "run": self.run, "clients": len(self.agreement.names)}

    @property
    def inputs(self) -> Inputs:
        """What the network takes, without texts that few training samples have: for readers who are no site."""
        inputs = self.agreement.inputs
        return inputs.model_copy(update={"columns": frequent(inputs.columns, self.texts)})

    def write(self, folder: Path) -> None:
        """Keep it in the run's folder."""
        content = sealed_json(self._asdict() | {"agreement": self.agreement.model_dump(mode="json")})
        files.write(folder / FILE, content, mode=0o600)

    @classmethod
    def load(cls, folder: Path, fix: str) -> Self:
        """The run in a folder; ``fix`` ends the sentence of an error.

        Raises:
            InputError: it cannot be read.
        """
        path = folder / FILE
        try:
            values = read_json(path)
            return cls(
                values["study"], values["run"], Agreement.model_validate(values["agreement"]), int(values["secret"]),
                tuple(map(int, values["texts"])),
            )  # fmt: skip
        except (OSError, ValueError, TypeError, KeyError, pydantic.ValidationError) as error:
            raise InputError(f"{path} cannot be read ({' '.join(str(error).split())[:200]}): {fix}") from None

    @classmethod
    def read(cls, folder: Path, study: str, sites: Sequence[str]) -> Self | None:
        """The run in a folder, if there is one.

        Raises:
            InputError: it cannot be read, or is another study's or other sites'.
        """
        if not (folder / FILE).exists():
            return None
        site_run = cls.load(folder, f"choose another folder with {option('out')}")
        if site_run.study != study:
            raise InputError(f"{folder} has a run of another study: choose another with {option('out')}")
        if site_run.agreement.names != tuple(sites)[: len(site_run.agreement.names)]:
            raise InputError(f"{folder} has a run of other sites: choose another with {option('out')}")
        return site_run


class Joining:
    """Tells sites of a run that do not know it: those that have forgotten it, and those that come after its start.

    A site that was away at the start says what it has like the others did. It has to fit what they agreed on, which
    stays as it is; only the numbers of its samples are added.

    Args:
        site_run: the run.
        folder: of the run.
        say: for events.
    """

    def __init__(self, site_run: SiteRun, folder: Path, say: Events) -> None:
        self.site_run, self._folder, self._say = site_run, folder, say

    def samples(self, client: int) -> int:
        """How many training samples a client has said that it has."""
        return sum(self.site_run.agreement.train[client])

    def tests(self, client: int) -> int:
        """How many test samples a client has said that it has."""
        agreement = self.site_run.agreement
        return sum(agreement.test[client]) if client < len(agreement.test) else 0

    def introduce(self, client: int, request: Mapping[str, Any]) -> list[Question]:
        """What a site is asked and told before it is asked what it did not understand."""
        agreement = self.site_run.agreement
        if self.samples(client):
            return [self._question("begin", client, {"agreement": agreement.model_dump(mode="json")})]
        site = agreement.names[client]
        features = {"inputs": agreement.inputs.model_dump(mode="json"), "classes": list(agreement.classes)}
        features |= {"labels": list(agreement.labels)} if agreement.several else {}

        def on_offer(message: Message) -> list[Question]:
            try:
                texts = unknown_texts(agreement, site, offer_of(message))
            except InputError as error:
                return [self._question("ended", client, {"why": str(error)}, partial(_refuse, str(error)))]
            if texts:
                what = f"{site} has texts that no site had at the start, which count as none of the known ones"
                self._say(f"{what}: {listed(texts, 5)}", site=site)
            return [self._question("inputs", client, features, on_sums)]

        def on_sums(message: Message) -> list[Question]:
            form = Sums.like(len(agreement.classes), agreement.width, len(agreement.targets))
            sums = checks.sums_of(message, form, self.site_run.agreement.samples)
            more = texts_of(agreement.inputs, [sums])
            texts = tuple(a + b for a, b in zip(self.site_run.texts, more, strict=True))
            larger = self.site_run._replace(agreement=self.site_run.agreement.with_counts(client, sums), texts=texts)
            content = manifest(larger.agreement.federation(""))  # if this fails, nothing is written
            larger.write(self._folder)
            self.site_run = larger
            renew(self._folder, content)
            round, count = request.get("round"), self.samples(client)
            what = f"{site} comes late and takes part from round {round} of {request.get('method')} on"
            self._say(f"{what}, with {count} training samples", site=site, round=round, late=True)
            [begin] = self.introduce(client, request)
            return [begin._replace(about=dict(begin.about) | {"late": round})]

        return [self._question("study", client, offered(agreement.backbone), on_offer)]

    def _question(self, kind: str, client: int, more: dict[str, Any], then: Any = None) -> Question:
        return Question(about(kind, self.site_run.study, self.site_run.run, client) | more, {}, then)


def _refuse(why: str, message: Message) -> list[Question]:
    raise Refusal(why)


def about(kind: str, study: str, run: str, client: int) -> dict[str, Any]:
    """What a message says by which a site learns of a run."""
    return {
        "kind": kind, "study": study, "digest": digest(study), "run": run, "number": client, "version": __version__
    }  # fmt: skip


def offered(backbone: Backbone | None) -> dict[str, Any]:
    """What the question for a site's offer says of the backbone."""
    return {} if backbone is None else {"backbone": backbone.digest}


def offer_of(message: Message) -> Offer:
    """What a site says of its samples.

    Raises:
        Refusal: it is not in order.
    """
    try:
        return Offer.model_validate(message.about["offer"])
    except (KeyError, pydantic.ValidationError) as error:
        raise Refusal(f"what it says of its samples is not in order ({error})") from None
