"""The server: sites agree on the data, then the study runs as in a simulation, with sites for clients."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from idiolect.core.errors import InputError, Interrupted, option
from idiolect.data import manifest
from idiolect.federation.data.agreement import Offer, Sums, agree, common_form, texts_of
from idiolect.federation.data.backbone import Backbone, check, check_samples, width_of
from idiolect.federation.data.remarks import remarks
from idiolect.federation.data.targets import common_names
from idiolect.federation.events import FILE, Events
from idiolect.federation.messages import Message, Refusal
from idiolect.federation.rounds import checks
from idiolect.federation.rounds.conversation import Carrier, Conversation, Patience, Question
from idiolect.federation.rounds.study import study_of
from idiolect.federation.server.engine import Sites
from idiolect.federation.server.growth import grow
from idiolect.federation.server.run import FILE as RUN
from idiolect.federation.server.run import Joining, SiteRun, about, offer_of, offered
from idiolect.federation.server.study import SiteStudy, check_methods
from idiolect.runs.store import renew
from idiolect.simulation import Job
from idiolect.studies import Result, run
from idiolect.studies.backbones import is_frozen, normalise_of
from idiolect.studies.progress import Watcher
from idiolect.studies.schedule import is_finished


class Terms(NamedTuple):
    """How the server deals with sites."""

    patience: Patience = Patience()
    most: float = 100.0
    """An upload whose norm is more than this many times the round's median does not count."""
    start: int | None = None
    """Sites that must be there to agree before the first round; others can come later. None takes all."""
    goodbye: float = 10.0
    """Seconds that sites have to answer that a run is over."""


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
        stop: asked while sites agree and before each training; once the rounds go on, signals end the run too.
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
    site_run = SiteRun.read(out, study.to_yaml(), sites)
    if site_run is None:
        site_run = _agreement(talk, study, terms, stop, say)
        if out.is_dir() and any(p.name[0] != "." for p in out.iterdir()):
            raise InputError(f"{out} exists and holds no run of a federation: choose another with {option('out')}")
        site_run.write(out)
    elif (backbone := site_run.agreement.backbone) is not None:
        check(study, backbone.digest)
    joining = Joining(site_run, out, say)
    talk.introduce = joining.introduce

    def on_start() -> None:
        if say.file is None:
            say.keep(out / FILE)

    engine = Sites(
        talk, site_run.about, terms.patience, terms.most, say, on_start, public, samples=joining.samples,
        tests=joining.tests,
    )  # fmt: skip
    now = roster or (lambda: sites)
    while True:
        if stop():
            raise Interrupted
        _grow(study, joining, now(), out, say)
        talk.sites, engine.about = joining.site_run.agreement.names, joining.site_run.about
        engine.pauses = lambda: stop() or len(now()) > len(talk.sites)
        server_study = study.at_server(joining.site_run, out)
        engine.participation = server_study.participation
        renew(out, manifest(server_study.federation()))  # a server may have been killed while it let a site in
        try:
            result = run(server_study, out, engine=engine, resume=True, watcher=watcher, again=again)
            break
        except Interrupted:
            if not engine.is_stopped:
                raise
            engine.is_stopped = False
    _tell(talk, link, joining, terms, stop)
    return result


def is_complete(study: SiteStudy, out: Path) -> bool:
    """Whether a folder has the whole run of a study.

    Raises:
        InputError: it has the run of another one, or cannot be read.
    """
    if not (out / RUN).exists():
        return False
    site_run = SiteRun.load(out, "restore it, or give the study's file another name")
    if site_run.study != study.to_yaml():
        raise InputError(f"{out} has the run of an earlier version of it: give a changed study another name")
    return is_finished(study, _jobs(study, site_run), out)


def _jobs(study: SiteStudy, site_run: SiteRun) -> list[Job]:
    server_study = study.at_server(site_run)
    return [job for _, job in server_study.jobs(server_study.federation())]


def _grow(study: SiteStudy, joining: Joining, names: Sequence[str], out: Path, say: Events) -> None:
    """Let a run take on the sites that were added to the roster since it began."""
    before = joining.site_run.agreement
    newcomers = names[len(before.names) :]
    if not newcomers:
        return
    larger = joining.site_run._replace(agreement=before.among(names))
    jobs = [_jobs(study, site_run) for site_run in (joining.site_run, larger)]
    if is_finished(study, jobs[0], out):  # what is finished stays as it is
        return
    grow(out, *jobs)
    joining.site_run = larger
    joining.site_run.write(out)
    for site in newcomers:
        say(f"{site} was added, and takes part as soon as it is there", site=site, added=True)


def _tell(talk: Conversation, link: Carrier, joining: Joining, terms: Terms, stop: Callable[[], bool]) -> None:
    """Tell the sites that are there that the run is over; none is waited for long."""
    question, silence = Question(joining.site_run.about | {"kind": "done"}, {}), terms.patience.silence
    ids = [
        i for i, site in enumerate(talk.sites)
        if joining.samples(i) and link.connections(site) and link.quiet_for(site) < silence
    ]  # fmt: skip
    with suppress(Interrupted):
        talk.ask(dict.fromkeys(ids, question), lambda i, m: None, Patience(0, terms.goodbye, silence), stop)


def _agreement(talk: Conversation, study: SiteStudy, terms: Terms, stop: Callable[[], bool], say: Events) -> SiteRun:
    """Let the sites that are there agree on features, classes and normalisation."""
    text, run_id, count = study.to_yaml(), secrets.token_hex(8), len(talk.sites)
    patience = terms.patience._replace(least=terms.start or count)

    def ask(
        kind: str, whom: Iterable[int], take: Callable[[int, Message], Any], more: dict[str, Any]
    ) -> dict[int, Any]:
        questions = {i: Question(about(kind, text, run_id, i) | more, {}) for i in whom}
        answers = talk.ask(questions, take, patience, stop)
        return {i: answers[i] for i in sorted(answers)}

    backbone = Backbone.of(study)
    offers: dict[int, Offer] = ask("study", range(count), lambda i, m: offer_of(m), offered(backbone))
    by_site = {talk.sites[i]: offer for i, offer in offers.items()}
    try:
        inputs, classes = common_form(by_site, study.task)
        predicted, several = common_names(by_site), next(iter(offers.values())).labels
        check_samples(study, inputs.form, len(predicted or classes))
        check_methods(study, inputs, classes, predicted, several=several)
    except InputError as error:  # who can mend it is at a site
        talk.ask(
            {i: Question(about("ended", text, run_id, i) | {"why": str(error)}, {}) for i in offers},
            lambda i, m: None, Patience(0, terms.goodbye, terms.patience.silence), stop,
        )  # fmt: skip
        raise
    sentences = remarks(inputs, by_site)
    for sentence in sentences:
        say(sentence)
    features = {"inputs": inputs.model_dump(mode="json"), "classes": list(classes), "remarks": sentences}
    features |= {"labels": list(predicted)} if several else {}
    width = width_of(study, len(inputs.mean))
    form = Sums.like(len(classes), width, len(predicted))
    counts: list[int] = []

    def take_sums(client: int, message: Message) -> Sums:
        sums = checks.sums_of(message, form, sum(counts))
        counts.append(sums.samples)
        return sums

    site_sums: dict[int, Sums] = ask("inputs", offers, take_sums, features)
    by_name = {talk.sites[i]: sums for i, sums in site_sums.items()}
    agreement = agree(
        inputs,
        classes,
        by_name,
        normalise_of(study),
        backbone,
        frozen=is_frozen(study),
        predicted=predicted,
        labels=several,
    )
    texts = texts_of(inputs, list(site_sums.values()))
    data = agreement.federation(study.name)
    for _, job in study.with_agreement(data).jobs(data):
        job.build()  # which must be possible before anything is written
    site_run = SiteRun(text, run_id, agreement.among(talk.sites), secrets.randbits(62), texts)
    ask("begin", site_sums, lambda i, m: None, {"agreement": site_run.agreement.model_dump(mode="json")})
    for i in range(count):
        if i not in site_sums:
            site = talk.sites[i]
            say(f"begins without {site}, which takes part as soon as it is there", site=site, missing=True)
    return site_run


def result(folder: Path) -> Result:
    """The run of a federation in its server's folder.

    Raises:
        InputError: what sites have agreed on cannot be read, or its study names code by its import path.
    """
    site_run = SiteRun.load(folder, "restore it, or take the folder as the server wrote it")
    try:
        return Result(folder, SiteStudy(**study_of(site_run.study).model_dump(exclude_unset=True)).at_server(site_run))
    except Refusal as error:
        raise InputError(
            f"{folder / RUN} cannot be read ({error}): restore it, or take the idiolect that wrote it"
        ) from None
