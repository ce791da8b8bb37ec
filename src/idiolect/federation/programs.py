"""The two programs of a federation: the server's and a site's."""

from __future__ import annotations

import shlex
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import filelock

from idiolect.core import files, signals
from idiolect.core.errors import InputError, Interrupted, option
from idiolect.federation.data.samples import Samples
from idiolect.federation.events import Events, kept
from idiolect.federation.monitor.overview import Overview
from idiolect.federation.monitor.page import Page
from idiolect.federation.monitor.page import place as page_place
from idiolect.federation.rounds.conversation import Carrier, Patience
from idiolect.federation.server.conduct import Terms, conduct
from idiolect.federation.server.study import study_for
from idiolect.federation.site.personal_state import Vault
from idiolect.federation.site.worker import Worker
from idiolect.federation.trust import kits
from idiolect.federation.trust.policy import Policy
from idiolect.federation.trust.private_files import private_folder
from idiolect.studies import Result
from idiolect.studies.progress import Several, Silent, Watcher

PAGE = "page.url"
"""The file of a server's kit that has the address of the operator's page while it is served."""


def serve(
    kit: Path, study: Path, out: Path, *, listen: str | None = None, page: str | None = None,
    terms: Terms | None = None, watcher: Watcher | None = None, say: Events | None = None,
) -> Result:  # fmt: skip
    """Run a study at the sites of a federation, or the rest of it.

    Args:
        kit: the server's, from ``authority.provision``.
        study: its file.
        out: folder of the run; if it holds one, that run continues.
        listen: host and port; None takes the port of the kit's address, on every interface or on this machine alone.
        page: where the operator's page is served, as a port of this machine or host:port; None serves none.
        terms: how the server deals with sites.
        watcher: is told about the progress.
        say: for events.

    Raises:
        InputError: the kit, the study or the folder cannot be used, or the sites' data do not fit each other.
        RunError: the port is in use, or fewer sites than are needed can answer; whole rounds are on disk.
        Interrupted: SIGINT or SIGTERM was received; whole rounds are on disk.
    """
    from idiolect.federation.link.server_end import Link, listening

    found = kits.server_kit(kit, out)
    whole = study_for(study, found.name)
    terms, say, able = terms or Terms(), say or Events(), len(found.roster.keys())
    if not 1 <= terms.patience.least <= able:
        raise InputError(f"{option('min_sites', terms.patience.least)} is not possible with {able} sites")
    if terms.start is not None and not terms.patience.least <= terms.start <= able:
        raise InputError(
            f"{option('start_with', terms.start)} is not possible with {able} sites, of which each round needs "
            f"{terms.patience.least}"
        )
    again = command(kit, study, out, listen=listen, page=page, terms=terms, sites=able, quiet=say.quiet)
    terms = terms._replace(start=terms.start or able)
    try:
        place = listening(found, listen)
    except ValueError as error:
        raise InputError(f"{option('listen')}: {error}") from None
    shown = None if page is None else _place(page)
    with Link(found, place, say) as link, signals.received(_stopped) as came, ExitStack() as open_:
        open_.enter_context(kept(say))
        carrier: Carrier = link
        if shown is not None:
            lost = terms.patience.lost
            carrier = overview = Overview(link, found.name, whole.name, link.sites, out, say, lost)
            watcher = Several(watcher or Silent(), overview)
            url = open_.enter_context(Page(overview.status, found, shown, say)).url
            open_.callback((kit / PAGE).unlink, missing_ok=True)
            files.write(kit / PAGE, f"{url}\n", mode=0o600)
            if sys.stderr is not None and sys.stderr.isatty():
                say.show(f"The page of this federation, for you alone: {url}")
            say(f"the address of the operator's page, with its token, is in {kit / PAGE}")
        say(f"{found.name}: {able} sites can connect to {place[0]}:{place[1]}")

        def stop() -> bool:
            return bool(came)

        try:
            return conduct(
                whole, carrier, list(found.sites), out, say, terms=terms, watcher=watcher, stop=stop, again=again,
                public=link.keys, roster=link.sites,
            )  # fmt: skip
        except Interrupted as error:
            if came and str(error) == "stopped":
                raise Interrupted(f"stopped before the first round; continue with: {again}", came[0]) from None
            raise


def command(
    kit: Path, study: Path, out: Path, *, listen: str | None, page: str | None, terms: Terms, sites: int, quiet: bool
) -> str:
    """The command that continues a run of so many sites: with its options, except for those that are as usual."""
    usual = Terms(Patience(sites // 2 + 1))
    options: list[list[Any]] = [
        ["--listen", listen, None],
        ["--page", page, None],
        ["--min-sites", terms.patience.least, usual.patience.least],
        ["--start-with", terms.start, usual.start],
        ["--deadline", terms.patience.deadline, usual.patience.deadline],
        ["--lost-after", terms.patience.lost, usual.patience.lost],
        ["--most-norm", terms.most, usual.most],
    ]
    words = [word for name, value, other in options if value != other for word in (name, str(value).removesuffix(".0"))]
    words += ["--quiet"] if quiet else []
    return shlex.join(["idiolect", "federation", "serve", str(kit), str(study), "--out", str(out), *words])


def take_part(
    kit: Path, samples: Samples, state: Path, *, policy: Path | None = None, key: Path | None = None,
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
        InputError: the kit or the policy cannot be used, another process uses the state, or another program has
            connected as this site. Nothing else that happens on the network ends it.
        Interrupted: SIGINT or SIGTERM was received.
    """
    from idiolect.federation.link.site_end import Connection

    kits.site_kit(kit)  # nothing is written where it cannot be used
    private_folder(state)
    found, say = kits.site_kit(kit, state), say or Events()
    worker = worker_of(found, samples, state, policy=policy, key=key, say=say)
    lock = filelock.FileLock(state / ".lock", timeout=0)
    try:
        lock.acquire()
    except filelock.Timeout:
        raise InputError(f"another process uses {state}: stop it, or give another {option('state')}") from None
    say(f"{found.site} of {found.name}: {len(samples)} samples, state in {state}")
    try:
        with kept(say), signals.received(_stopped, raising=1):  # nothing can be left half-done
            Connection(found, worker.answer, say).run(threading.Event())
    except Interrupted:
        say(f"{found.site} stops; its state stays in {state}")
        raise
    finally:
        lock.release()


def worker_of(
    kit: kits.SiteKit, samples: Samples, state: Path, *, policy: Path | None, key: Path | None, say: Events
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


def _stopped(number: int) -> Interrupted:
    return Interrupted("stopped", number)
