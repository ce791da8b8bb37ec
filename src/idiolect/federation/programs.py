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
from idiolect.federation.data.samples import SiteFiles
from idiolect.federation.events import Events, warnings_as_events
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
from idiolect.federation.trust.private_files import private_folder, token_of
from idiolect.studies import Result
from idiolect.studies.progress import Several, Watcher

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
    from idiolect.federation.link.server_end import Link, listening

    server = kits.server_kit(kit, out)
    whole = study_for(study, server.name)
    terms, say, count = terms or Terms(), say or Events(), len(server.roster.keys())
    if not 1 <= terms.patience.least <= count:
        raise InputError(f"{option('min_sites', terms.patience.least)} is not possible with {count} sites")
    if terms.start is not None and not terms.patience.least <= terms.start <= count:
        raise InputError(
            f"{option('start_with', terms.start)} is not possible with {count} sites, of which each round needs "
            f"{terms.patience.least}"
        )
    again = command(
        kit, study, out, listen=listen, page=page, metrics_token=metrics_token, terms=terms, sites=count, say=say
    )
    terms = terms._replace(start=terms.start or count)
    try:
        place = listening(server, listen)
    except ValueError as error:
        raise InputError(f"{option('listen')}: {error}") from None
    page_address = None if page is None else _place(page)
    if metrics_token is not None and page is None:
        raise InputError(f"{option('metrics_token')} is for the port of the operator's page: give {option('page')} too")
    token = None if metrics_token is None else token_of(metrics_token)
    with Link(server, place, say) as link, signals.received(_interruption) as signals_, ExitStack() as open_:
        open_.enter_context(warnings_as_events(say))
        carrier: Carrier = link
        if page_address is not None:
            silence = terms.patience.silence
            carrier = overview = Overview(link, server.name, whole.name, link.sites, out, say, silence)
            watcher = Several(watcher or Watcher(), overview)
            shown = Page(overview.status, server, page_address, say, idle=overview.idle, metrics_token=token)
            url = open_.enter_context(shown).url
            open_.callback((kit / PAGE).unlink, missing_ok=True)
            files.write(kit / PAGE, f"{url}\n", mode=0o600)
            if sys.stderr is not None and sys.stderr.isatty() and not say.as_json:
                say.show(f"The page of this federation, for you alone: {url}")
            say(f"the address of the operator's page, with its token, is in {kit / PAGE}")
        say(f"{server.name}: {count} sites can connect to {place[0]}:{place[1]}")

        def stop() -> bool:
            return bool(signals_)

        try:
            return conduct(
                whole, carrier, list(server.sites), out, say, terms=terms, watcher=watcher, stop=stop, again=again,
                public=link.keys, roster=link.sites,
            )  # fmt: skip
        except Interrupted as error:
            if signals_ and str(error) == "stopped":
                raise Interrupted(f"stopped before the first round; continue with: {again}", signals_[0]) from None
            raise


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
        InputError: the kit or the policy cannot be used, another process uses the state, or another program has
            connected as this site. Nothing else that happens on the network ends it.
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


def _interruption(number: int) -> Interrupted:
    return Interrupted("stopped", number)
