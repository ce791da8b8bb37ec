"""The two programs of a federation: the server's and a site's."""

from __future__ import annotations

import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import filelock

from idiolect.core import files, signals
from idiolect.core.errors import IdiolectError, InputError, Interrupted, option
from idiolect.federation.data.samples import SiteFiles
from idiolect.federation.events import FILE as EVENTS
from idiolect.federation.events import Events, warnings_as_events
from idiolect.federation.monitor.overview import Overview
from idiolect.federation.monitor.page import Page
from idiolect.federation.monitor.page import place as page_place
from idiolect.federation.queue import Queue
from idiolect.federation.rounds.conversation import Carrier, Patience
from idiolect.federation.server.conduct import Terms, conduct, is_complete
from idiolect.federation.server.study import SiteStudy, study_for
from idiolect.federation.site.personal_state import Vault
from idiolect.federation.site.worker import Worker
from idiolect.federation.trust import kits
from idiolect.federation.trust.policy import Policy
from idiolect.federation.trust.private_files import private_folder, token_of
from idiolect.studies import Result
from idiolect.studies.progress import Several, Watcher

if TYPE_CHECKING:
    from idiolect.federation.link.server_end import Link

_REST = 1.0  # seconds between two looks for a new study
PAGE = "page.url"
"""The file of a server's kit that has the address of the operator's page while it is served."""


def serve(
    kit: Path, study: Path, out: Path, *, listen: str | None = None, page: str | None = None,
    metrics_token: Path | None = None, terms: Terms | None = None, watcher: Watcher | None = None,
    say: Events | None = None,
) -> Result:  # fmt: skip
    """Run a study at the sites of a federation, or the rest of it.

    Args:
        kit: the server's, from ``authority.provision``.
        study: its file.
        out: folder of the run; if it holds one, that run continues.
        listen: host and port; None takes the port of the kit's address, on every interface or on this machine alone.
        page: where the operator's page is served, as a port of this machine or host:port; None serves none.
        metrics_token: file of a token that reads the page's metrics and nothing else, made if it does not exist.
        terms: how the server deals with sites.
        watcher: is told about the progress.
        say: for events.

    Raises:
        InputError: the kit, the study or the folder cannot be used, or the sites' data do not fit each other.
        RunError: the port is in use, or fewer sites than are needed can answer; whole rounds are on disk.
        Interrupted: SIGINT or SIGTERM was received; whole rounds are on disk.
    """
    server, say, terms = kits.server_kit(kit, out), say or Events(), terms or Terms()
    whole = study_for(study, server.name)
    with _open(server, study, whole.name, out, listen, page, metrics_token, terms, watcher, say) as program:
        return program.run(whole, out)


def serve_queue(
    kit: Path, studies: Path, out: Path, *, listen: str | None = None, page: str | None = None,
    metrics_token: Path | None = None, terms: Terms | None = None, watcher: Watcher | None = None,
    say: Events | None = None, on_result: Callable[[Result], None] = lambda result: None,
) -> NoReturn:  # fmt: skip
    """Run the studies whose files are in a folder, one after the other, until a signal comes.

    A study that cannot run is said, and the next one runs.

    Args:
        kit: the server's, from ``authority.provision``.
        studies: folder of the files; more can be put there at any time.
        out: folder of the runs: that of ``studies/hearts.yaml`` is ``out/hearts``.
        listen: as for ``serve``.
        page: as for ``serve``.
        metrics_token: as for ``serve``.
        terms: how the server deals with sites.
        watcher: is told about the progress.
        say: for events.
        on_result: is told of each study that has run to its end.

    Raises:
        InputError: the kit or a folder cannot be used.
        RunError: the port is in use.
        Interrupted: SIGINT or SIGTERM was received; whole rounds are on disk.
    """
    server, say, terms = kits.server_kit(kit, out), say or Events(), terms or Terms()
    queue, file = Queue(studies, out), out / EVENTS
    with _open(server, studies, "", out, listen, page, metrics_token, terms, watcher, say, queue) as program:
        _make(out)
        say.keep(file)
        say(f"the studies in {studies} run one after the other, in folders of {out}")
        has_said = False
        while True:
            program.check()
            path = queue.take()
            if path is None:
                if not has_said:
                    say(f"no study is left in {studies}: waits for a file")
                has_said = True
                program.rest()
                continue
            has_said = False
            folder = queue.out(path)
            say.hold()
            try:
                whole = study_for(path, server.name)
                if not is_complete(whole, folder):
                    say(f"the study in {path} runs in {folder}")
                    if program.overview is not None:
                        program.overview.follow(whole.name, folder)
                    on_result(program.run(whole, folder))
            except Interrupted:
                raise
            except IdiolectError as error:
                why = str(error).removeprefix(f"{path}: ")
                say(f"{path} does not run: {why}", ended=True)
                queue.end("failed", why)
            else:
                queue.end("done")
            finally:
                say.keep(file)


@dataclass
class _Server:
    """A server to which sites can connect."""

    link: Link
    overview: Overview | None
    terms: Terms
    watcher: Watcher | None
    say: Events
    again: str
    signals: list[int]

    def run(self, study: SiteStudy, out: Path) -> Result:
        """Run a study, or the rest of it."""
        carrier: Carrier = self.link
        watcher, terms = self.watcher, self.terms._replace(start=self.terms.start or len(self.link.keys))
        if self.overview is not None:
            carrier, watcher = self.overview, Several(watcher or Watcher(), self.overview)
        try:
            return conduct(
                study, carrier, list(self.link.sites()), out, self.say, terms=terms, watcher=watcher,
                stop=lambda: bool(self.signals), again=self.again, public=self.link.keys, roster=self.link.sites,
            )  # fmt: skip
        except Interrupted as error:
            if self.signals and str(error) == "stopped":
                raise Interrupted(f"stopped; continue with: {self.again}", self.signals[0]) from None
            raise

    def check(self) -> None:
        """Check that no signal has come, between two studies.

        Raises:
            Interrupted: one has.
        """
        if self.signals:
            raise Interrupted(f"stopped while no study ran; continue with: {self.again}", self.signals[0])

    def rest(self) -> None:
        """Wait for a moment, while there is no study."""
        if self.overview is not None:
            self.overview.rest()
        time.sleep(_REST)


@contextmanager
def _open(
    kit: kits.ServerKit, study: Path, name: str, out: Path, listen: str | None, page: str | None,
    metrics_token: Path | None, terms: Terms, watcher: Watcher | None, say: Events, queue: Queue | None = None,
) -> Iterator[_Server]:  # fmt: skip
    """Let sites connect, and serve the page."""
    from idiolect.federation.link.server_end import Link, listening

    count = len(kit.roster.keys())
    if not 1 <= terms.patience.least <= count:
        raise InputError(f"{option('min_sites', terms.patience.least)} is not possible with {count} sites")
    if terms.start is not None and not terms.patience.least <= terms.start <= count:
        raise InputError(
            f"{option('start_with', terms.start)} is not possible with {count} sites, of which each round needs "
            f"{terms.patience.least}"
        )
    again = command(
        kit.folder, study, out, listen=listen, page=page, metrics_token=metrics_token, terms=terms, sites=count, say=say
    )
    try:
        place = listening(kit, listen)
    except ValueError as error:
        raise InputError(f"{option('listen')}: {error}") from None
    page_address = None if page is None else _place(page)
    if metrics_token is not None and page is None:
        raise InputError(f"{option('metrics_token')} is for the port of the operator's page: give {option('page')} too")
    token = None if metrics_token is None else token_of(metrics_token)
    with Link(kit, place, say) as link, signals.received(_interruption) as signals_, ExitStack() as open_:
        open_.enter_context(warnings_as_events(say))
        overview = None
        if page_address is not None:
            overview = Overview(
                link, kit.name, name, link.sites, out, say, terms.patience.silence,
                queue=lambda: [] if queue is None else [entry._asdict() for entry in queue.entries()],
            )  # fmt: skip
            shown = Page(overview.status, kit, page_address, say, idle=overview.idle, metrics_token=token)
            url = open_.enter_context(shown).url
            if shown.tls is not None:
                link.contexts.append(shown.tls)
            open_.callback((kit.folder / PAGE).unlink, missing_ok=True)
            files.write(kit.folder / PAGE, f"{url}\n", mode=0o600)
            if sys.stderr is not None and sys.stderr.isatty() and not say.as_json:
                say.show(f"The page of this federation, for you alone: {url}")
            say(f"the address of the operator's page, with its token, is in {kit.folder / PAGE}")
        say(f"{kit.name}: {count} sites can connect to {place[0]}:{place[1]}")
        yield _Server(link, overview, terms, watcher, say, again, signals_)


def command(
    kit: Path, study: Path, out: Path, *, listen: str | None, page: str | None, metrics_token: Path | None,
    terms: Terms, sites: int, say: Events,
) -> str:  # fmt: skip
    """The command that continues a run of so many sites: with its options, except for those that are as usual."""
    usual = Terms(Patience(sites // 2 + 1))
    options: list[list[Any]] = [
        ["--listen", listen, None],
        ["--page", page, None],
        ["--metrics-token", metrics_token, None],
        ["--min-sites", terms.patience.least, usual.patience.least],
        ["--start-with", terms.start, usual.start],
        ["--deadline", terms.patience.deadline, usual.patience.deadline],
        ["--lost-after", terms.patience.silence, usual.patience.silence],
        ["--most-norm", terms.most, usual.most],
    ]
    words = [word for name, value, other in options if value != other for word in (name, str(value).removesuffix(".0"))]
    words += ["--log-json"] if say.as_json else []
    words += ["--quiet"] if say.quiet else []
    return shlex.join(["idiolect", "federation", "serve", str(kit), str(study), "--out", str(out), *words])


def take_part(
    kit: Path, samples: SiteFiles, state: Path, *, policy: Path | None = None, key: Path | None = None,
    say: Events | None = None,
) -> None:  # fmt: skip
    """Answer the server until a signal comes.

    Args:
        kit: the site's, from ``authority.provision``.
        samples: the site's.
        state: the folder of the personal state.
        policy: what is allowed; None limits nothing but code.
        key: the file of the key that encrypts the state, made if it does not exist; None keeps it in the clear.
        say: for events.

    Raises:
        InputError: the kit, the policy or the environment's proxy cannot be used, another process uses the state, or
            another program has connected as this site. Nothing else that happens on the network ends it.
        Interrupted: SIGINT or SIGTERM was received.
    """
    from idiolect.federation.link.site_end import Connection

    kits.site_kit(kit)  # nothing is written where it cannot be used
    private_folder(state)
    site, say = kits.site_kit(kit, state), say or Events()
    worker = worker_of(site, samples, state, policy=policy, key=key, say=say)
    lock = filelock.FileLock(state / ".lock", timeout=0)
    try:
        lock.acquire()
    except filelock.Timeout:
        raise InputError(f"another process uses {state}: stop it, or give another {option('state')}") from None
    say(f"{site.site} of {site.name}: {len(samples)} samples, state in {state}")
    try:
        with warnings_as_events(say), signals.received(_interruption, raising=1):  # nothing can be left half-done
            Connection(site, worker.answer, say).run(threading.Event())
    except Interrupted:
        say(f"{site.site} stops; its state stays in {state}")
        raise
    finally:
        lock.release()


def worker_of(
    kit: kits.SiteKit, samples: SiteFiles, state: Path, *, policy: Path | None, key: Path | None, say: Events
) -> Worker:
    """What answers for a site."""
    rules = Policy() if policy is None else Policy.read(policy)
    private_folder(state)
    vault = Vault.of(state, key)
    return Worker(samples, kit.number, state, rules, vault, say, kit.identity)


def _place(text: str) -> tuple[str, int]:
    try:
        return page_place(text)
    except ValueError as error:
        raise InputError(f"{option('page')}: {error}") from None


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder} cannot be made ({error.strerror}): give another {option('out')}") from None


def _interruption(number: int) -> Interrupted:
    return Interrupted("stopped", number)
