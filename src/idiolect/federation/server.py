"""The server: sites agree on the data, then the study runs as in a simulation, with sites for clients."""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import PrivateAttr

from idiolect.core.errors import InputError, Interrupted, option
from idiolect.data import FederatedData, manifest
from idiolect.deploy.make import Elsewhere
from idiolect.deploy.schema import Inputs
from idiolect.federation import checks
from idiolect.federation.agreement import Offer, Sums, agree, remarks, texts_of, together
from idiolect.federation.begun import FILE as BEGUN
from idiolect.federation.begun import Begun, Joining, about, offer_of
from idiolect.federation.conversation import Carrier, Conversation, Patience, Question
from idiolect.federation.engine import Remote, Sites
from idiolect.federation.events import FILE, Events
from idiolect.federation.growth import grow
from idiolect.federation.messages import Message, Refused
from idiolect.federation.samples import Samples, pooled, sums
from idiolect.federation.site import study_of
from idiolect.runs.checkpoint import CHECKPOINT, rounds
from idiolect.runs.store import renew
from idiolect.simulation import Job
from idiolect.studies import Result, Study, run
from idiolect.studies.method_use import Use
from idiolect.studies.progress import Watcher

_GOODBYE = 10.0  # seconds
_ONLY_HERE = (
    "dataset", "data", "data_dir", "target", "client_column", "drop", "resize", "partition", "clients", "sizes", "keep",
    "shifts", "new_clients", "new_shifts", "attacks",
)  # fmt: skip
"""Settings of a study that say what data a simulation has: at sites their owners decide."""


class Terms(NamedTuple):
    """How the server deals with sites."""

    patience: Patience = Patience()
    most: float = 100.0
    """An upload whose norm is more than this many times the round's median does not count."""
    start: int | None = None
    """Sites that must be there to agree before the first round; others can come later. None takes all."""


class SiteStudy(Study):
    """A study whose samples are at the sites of a federation."""

    _agreed: FederatedData | None = PrivateAttr(None)
    _secret: int | None = PrivateAttr(None)
    _inputs: Inputs | None = PrivateAttr(None)

    def known(self, data: FederatedData, secret: int | None = None, inputs: Inputs | None = None) -> SiteStudy:
        """The study with what the sites have agreed on, and the seed of the noise that only the server knows."""
        study = self.model_copy()
        study._agreed, study._secret, study._inputs = data, secret, inputs
        return study

    def at_server(self, begun: Begun) -> SiteStudy:
        """The study as the server runs it: what a model predicts for a sample stays at the site, also as a file."""
        data = begun.agreed.federation(self.name)
        return self.model_copy(update={"save_predictions": False}).known(data, begun.secret, begun.inputs)

    def federation(self) -> FederatedData:
        """Who has how many samples of which class; the samples themselves are at the sites."""
        if self._agreed is None:
            raise InputError("the samples are at the sites: run this study with idiolect federation serve")
        return self._agreed

    def job(self, use: Use, seed: int, federation: FederatedData) -> Job:
        """The job of a method and a seed, whose clients' states are at the sites."""
        job = super().job(use, seed, federation)
        return job._replace(build=Remote(job.build), secret=self._secret)

    def elsewhere(self, job: Job) -> Elsewhere | None:
        """What the server knows of the sites' samples, and the method that they run."""
        if self._inputs is None or not isinstance(job.build, Remote):
            return None
        return Elsewhere(job.build.real, self._inputs)


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
    public: Mapping[str, bytes] | None = None, roster: Callable[[], Sequence[str]] | None = None,
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
        roster: says which sites there are by now: ``sites``, and those that were added at the end.

    Raises:
        InputError: the folder holds something else, or the sites' data do not fit each other.
        RunError: fewer sites than are needed can answer.
        Interrupted: the run was stopped.
    """
    terms = terms or Terms()
    talk = Conversation(link, sites, say)
    begun = Begun.read(out, study.to_yaml(), sites)
    if begun is None:
        begun = _agreed(talk, study, terms, stop, say)
        if out.is_dir() and any(p.name[0] != "." for p in out.iterdir()):
            raise InputError(f"{out} exists and holds no run of a federation: choose another with {option('out')}")
        begun.write(out)
    joining = Joining(begun, out, say)
    talk.introduce = joining.introduce

    def began() -> None:
        if say.file is None:
            say.keep(out / FILE)

    engine = Sites(talk, begun.about, terms.patience, terms.most, say, began, public, samples=joining.samples)
    now = roster or (lambda: sites)
    while True:
        _grow(study, joining, now(), out, say)
        talk.sites, engine.about = joining.begun.agreed.names, joining.begun.about
        engine.more = lambda: len(now()) > len(talk.sites)
        known = study.at_server(joining.begun)
        renew(out, manifest(known.federation()))  # a server may have been killed while it let a site in
        try:
            result = run(known, out, engine=engine, resume=True, watcher=watcher, again=again)
            break
        except Interrupted:
            if not engine.stopped:
                raise
            engine.stopped = False
    _tell(talk, link, joining, terms.patience.lost, stop)
    return result


def _grow(study: SiteStudy, joining: Joining, names: Sequence[str], out: Path, say: Events) -> None:
    """Let a run take on the sites that were added to the roster since it began."""
    before = joining.begun.agreed
    added = names[len(before.names) :]
    cells = [p for p in out.glob(f"cells/*/{CHECKPOINT}") if rounds(p) == study.rounds]
    if not added or len(cells) == len(study.methods) * len(study.seeds):  # what is finished stays as it is
        return
    larger = joining.begun._replace(agreed=before.among(names))
    jobs = []
    for begun in (joining.begun, larger):
        known = study.at_server(begun)
        jobs.append([job for _, job in known.jobs(known.federation())])
    grow(out, *jobs)
    joining.begun = larger
    joining.begun.write(out)
    for site in added:
        say(f"{site} was added, and takes part as soon as it is there", site=site, added=True)


def _tell(talk: Conversation, link: Carrier, joining: Joining, lost: float, stop: Callable[[], bool]) -> None:
    """Tell the sites that are there that the run is over; none is waited for long."""
    done = Question(joining.begun.about | {"kind": "done"}, {})
    there = [
        i for i, site in enumerate(talk.sites)
        if joining.samples(i) and link.connections(site) and link.quiet_for(site) < lost
    ]  # fmt: skip
    with suppress(Interrupted):
        talk.ask(dict.fromkeys(there, done), lambda i, m: None, Patience(0, _GOODBYE, lost), stop)


def _agreed(talk: Conversation, study: SiteStudy, terms: Terms, stop: Callable[[], bool], say: Events) -> Begun:
    """Let the sites that are there agree on features, classes and normalisation."""
    text, run_id, count = study.to_yaml(), secrets.token_hex(8), len(talk.sites)
    patience = terms.patience._replace(least=terms.start or count)

    def ask(
        kind: str, whom: Iterable[int], take: Callable[[int, Message], Any], more: dict[str, Any]
    ) -> dict[int, Any]:
        questions = {i: Question(about(kind, text, run_id, i) | more, {}) for i in whom}
        found = talk.ask(questions, take, patience, stop)
        return {i: found[i] for i in sorted(found)}

    offers: dict[int, Offer] = ask("study", range(count), lambda i, m: offer_of(m), {})
    by_site = {talk.sites[i]: offer for i, offer in offers.items()}
    try:
        inputs, classes = together(by_site, study.task)
    except InputError as error:  # who can mend it is at a site
        talk.ask(
            {i: Question(about("ended", text, run_id, i) | {"why": str(error)}, {}) for i in offers},
            lambda i, m: None, Patience(0, _GOODBYE, terms.patience.lost), stop,
        )  # fmt: skip
        raise
    sentences = remarks(inputs, by_site)
    for sentence in sentences:
        say(sentence)
    features = {"inputs": inputs.model_dump(mode="json"), "classes": list(classes), "remarks": sentences}
    summed: dict[int, Sums] = ask(
        "inputs", offers, lambda i, m: checks.summed(m, len(classes), len(inputs.mean)), features
    )
    agreed = agree(inputs, classes, {talk.sites[i]: sums for i, sums in summed.items()}, study.normalise)
    texts = texts_of(inputs, list(summed.values()))
    begun = Begun(text, run_id, agreed.among(talk.sites), secrets.randbits(62), texts)
    ask("begin", summed, lambda i, m: None, {"agreed": begun.agreed.model_dump(mode="json")})
    for i in range(count):
        if i not in summed:
            site = talk.sites[i]
            say(f"begins without {site}, which takes part as soon as it is there", site=site, missing=True)
    return begun


def result(folder: Path) -> Result:
    """The run of a federation in its server's folder.

    Raises:
        InputError: what sites have agreed on cannot be read.
    """
    begun = Begun.load(folder, "restore it, or take the folder as the server wrote it")
    try:
        return Result(folder, SiteStudy(**study_of(begun.study).model_dump(exclude_unset=True)).at_server(begun))
    except Refused as error:
        raise InputError(f"{folder / BEGUN} cannot be read ({error}): take the idiolect that wrote it") from None


def rehearsed(
    study: SiteStudy, samples: Mapping[str, Samples], out: Path, engine: str = "sequential",
    watcher: Watcher | None = None,
) -> Result:  # fmt: skip
    """Run the same study on the same samples in one place, as a simulation: the federation gives these numbers.

    Raises:
        InputError: the samples do not fit each other.
    """
    inputs, classes = together({site: own.offer(study.task) for site, own in samples.items()}, study.task)
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
