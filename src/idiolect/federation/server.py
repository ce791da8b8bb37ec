"""The server: sites agree on the data, then the study runs as in a simulation, with sites for clients."""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pydantic
from pydantic import PrivateAttr

from idiolect.core import files
from idiolect.core.documents import read_json, sealed_json
from idiolect.core.errors import InputError, option
from idiolect.core.version import __version__
from idiolect.data import FederatedData
from idiolect.federation.agreement import Agreed, Offer, Sums, agree, together
from idiolect.federation.conversation import Carrier, Conversation, Patience, Question
from idiolect.federation.engine import Remote, Sites
from idiolect.federation.events import FILE, Events
from idiolect.federation.messages import Message, Refused, built
from idiolect.federation.samples import Samples, pooled, sums
from idiolect.federation.site import digest
from idiolect.simulation import Job
from idiolect.studies import Result, Study, run
from idiolect.studies.method_use import Use
from idiolect.studies.progress import Watcher

_FILE = ".federation.json"
_ONLY_HERE = (
    "dataset", "data", "data_dir", "target", "client_column", "drop", "resize", "partition", "clients", "sizes", "keep",
    "shifts", "new_clients", "new_shifts", "save_predictions", "attacks",
)  # fmt: skip
"""Settings of a study that say what data a simulation has: at sites their owners decide."""


class Terms(NamedTuple):
    """How the server deals with sites."""

    patience: Patience = Patience()
    most: float = 100.0
    """An upload whose norm is more than this many times the round's median does not count."""


class SiteStudy(Study):
    """A study whose samples are at the sites of a federation."""

    _agreed: FederatedData | None = PrivateAttr(None)
    _secret: int | None = PrivateAttr(None)

    def known(self, data: FederatedData, secret: int | None = None) -> SiteStudy:
        """The study with what the sites have agreed on, and the seed of the noise that only the server knows."""
        study = self.model_copy()
        study._agreed, study._secret = data, secret
        return study

    def federation(self) -> FederatedData:
        """Who has how many samples of which class; the samples themselves are at the sites."""
        if self._agreed is None:
            raise InputError("the samples are at the sites: run this study with idiolect federation serve")
        return self._agreed

    def job(self, use: Use, seed: int, federation: FederatedData) -> Job:
        """The job of a method and a seed, whose clients' states are at the sites."""
        job = super().job(use, seed, federation)
        return job._replace(build=Remote(job.build), secret=self._secret)


def study_for(path: Path, federation: str) -> SiteStudy:
    """The study in a file, for the sites of a federation.

    Raises:
        InputError: it cannot be read, or has settings that only a simulation can follow.
    """
    study = Study.read(path)
    if given := [name for name in _ONLY_HERE if name in study.model_fields_set and getattr(study, name)]:
        raise InputError(
            f"{path}: {given[0]} is for a simulation, and here each site has its own data: leave {given[0]} out"
        )
    if study.protocol.clients == "new" or study.protocol.observe or study.protocol.validation:
        raise InputError(
            f"{path}: protocol {study.protocol.written()} needs the samples of all clients: leave out new clients, "
            "observe and validation"
        )
    settings = study.model_dump(exclude_unset=True) | {"data": f"given: the sites of {federation}"}
    return SiteStudy(
        **{k: v for k, v in settings.items() if k not in _ONLY_HERE or k == "data"} | {"checkpoint_every": 1}
    )


def conduct(
    study: SiteStudy, link: Carrier, sites: Sequence[str], out: Path, say: Events, *, terms: Terms | None = None,
    watcher: Watcher | None = None, stop: Callable[[], bool] = lambda: False, again: str | None = None,
    public: Mapping[str, bytes] | None = None,
) -> Result:  # fmt: skip
    """Run a study at the sites of a federation, or the rest of it.

    Args:
        study: as ``study_for`` reads it.
        link: carries messages to sites.
        sites: their names, by the clients' numbers.
        out: folder of the run; if it holds one, that run continues.
        say: for events.
        terms: how the server deals with sites.
        watcher: is told about the progress.
        stop: asked while sites agree; afterwards signals end the run.
        again: the command that continues the run.
        public: the public key of each site in PEM, by name; secure aggregation needs them.

    Raises:
        InputError: the folder holds something else, or the sites' data do not fit each other.
        RunError: fewer sites than are needed can answer.
        Interrupted: the run was stopped.
    """
    terms = terms or Terms()
    talk = Conversation(link, sites, say)
    begun = _Begun.read(out / _FILE, study, sites) or _agreed(talk, study, terms, stop)
    talk.introduce = begun.introduce
    if not (out / _FILE).exists():
        if out.is_dir() and any(p.name[0] != "." for p in out.iterdir()):
            raise InputError(f"{out} exists and holds no run of a federation: choose another with {option('out')}")
        begun.write(out / _FILE)
    about = {"digest": begun.digest, "run": begun.run}

    def began() -> None:
        if say.file is None:
            say.keep(out / FILE)

    engine = Sites(talk, about, terms.patience, terms.most, say, began, public)
    whole = study.known(begun.agreed.federation(study.name), begun.secret)
    return run(whole, out, engine=engine, resume=True, watcher=watcher, again=again)


class _Begun(NamedTuple):
    """A run that the sites have agreed on."""

    study: str
    run: str
    agreed: Agreed
    secret: int
    """The seed of the noise of differential privacy: who knows it can take the noise away."""

    @property
    def digest(self) -> str:
        return digest(self.study)

    def introduce(self, client: int) -> list[Question]:
        """What a site is told that does not know the run."""
        plain = self.agreed.model_dump(mode="json")
        return [Question(_about("begin", self.study, self.run, client) | {"agreed": plain}, {})]

    def write(self, path: Path) -> None:
        content: dict[str, Any] = {"study": self.study, "run": self.run, "agreed": self.agreed.model_dump(mode="json")}
        content["secret"] = self.secret
        files.write(path, sealed_json(content))

    @classmethod
    def read(cls, path: Path, study: SiteStudy, sites: Sequence[str]) -> _Begun | None:
        """The run in a folder, if there is one.

        Raises:
            InputError: it cannot be read, or is another study's or other sites'.
        """
        if not path.exists():
            return None
        try:
            found = read_json(path)
            begun = cls(found["study"], found["run"], Agreed.model_validate(found["agreed"]), int(found["secret"]))
        except (OSError, ValueError, KeyError, pydantic.ValidationError) as error:
            raise InputError(f"{path} cannot be read ({error}): choose another folder with {option('out')}") from None
        if begun.study != study.to_yaml():
            raise InputError(f"{path.parent} has a run of another study: choose another with {option('out')}")
        if begun.agreed.names != tuple(sites):
            raise InputError(f"{path.parent} has a run of other sites: choose another with {option('out')}")
        return begun


def _about(kind: str, study: str, run: str, client: int) -> dict[str, Any]:
    return {
        "kind": kind, "study": study, "digest": digest(study), "run": run, "number": client, "version": __version__
    }  # fmt: skip


def _agreed(talk: Conversation, study: SiteStudy, terms: Terms, stop: Callable[[], bool]) -> _Begun:
    """Let all sites agree on features, classes and normalisation."""
    text, run_id, everyone = study.to_yaml(), secrets.token_hex(8), range(len(talk.sites))
    patience = terms.patience._replace(least=len(talk.sites), lost=float("inf"))

    def ask(kind: str, take: Callable[[int, Message], Any], more: dict[str, Any]) -> dict[str, Any]:
        questions = {i: Question(_about(kind, text, run_id, i) | more, {}) for i in everyone}
        found = talk.ask(questions, take, patience, stop)
        return {talk.sites[i]: found[i] for i in everyone}

    offers: dict[str, Offer] = ask("study", lambda i, m: _offer(m), {})
    inputs, classes = together(offers)
    like = Sums.like(len(classes), len(inputs.mean))

    def sums_of(client: int, message: Message) -> Sums:
        return Sums(**built(message.arrays, {"sums": like._asdict()})["sums"])

    summed = ask("inputs", sums_of, {"inputs": inputs.model_dump(mode="json"), "classes": list(classes)})
    begun = _Begun(text, run_id, agree(inputs, classes, summed, study.normalise), secrets.randbits(62))
    ask("begin", lambda i, m: None, {"agreed": begun.agreed.model_dump(mode="json")})
    return begun


def _offer(message: Message) -> Offer:
    try:
        return Offer.model_validate(message.about["offer"])
    except (KeyError, pydantic.ValidationError) as error:
        raise Refused(f"what it says of its samples is not in order ({error})") from None


def rehearsed(
    study: SiteStudy, samples: Mapping[str, Samples], out: Path, engine: str = "sequential",
    watcher: Watcher | None = None,
) -> Result:  # fmt: skip
    """Run the same study on the same samples in one place, as a simulation: the federation gives these numbers.

    Raises:
        InputError: the samples do not fit each other.
    """
    inputs, classes = together({site: own.offer() for site, own in samples.items()})
    every = enumerate(samples.values())
    ready = [own.prepared(inputs, classes, study.data_seed, k, look=False) for k, own in every]
    summed = {site: sums(one, len(classes)) for site, one in zip(samples, ready, strict=True)}
    data = pooled(ready, agree(inputs, classes, summed, study.normalise), study.name)
    return run(_Together(**study.model_dump(exclude_unset=True)).known(data), out, engine=engine, watcher=watcher)


class _Together(SiteStudy):
    """The same study where all samples are in one place."""

    def job(self, use: Use, seed: int, federation: FederatedData) -> Job:
        """The job of a method and a seed, as in any simulation."""
        return Study.job(self, use, seed, federation)


def command(kit: Path, study: Path, out: Path) -> str:
    """The command that continues a run."""
    return shlex.join(["idiolect", "federation", "serve", str(kit), str(study), "--out", str(out)])
