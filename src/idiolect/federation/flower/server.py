"""The server as Flower's ServerApp: it runs a study at the sites behind SuperNodes, or the rest of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from rich.console import Console

from idiolect.core.errors import InputError, RunError, as_options, in_a_file, listed, option
from idiolect.core.version import __version__
from idiolect.federation.events import Events, warnings_as_events
from idiolect.federation.flower.grid_link import GridLink
from idiolect.federation.rounds.conversation import Patience
from idiolect.federation.server.conduct import Terms, conduct
from idiolect.federation.server.study import study_for
from idiolect.federation.trust import kits
from idiolect.studies.settings import SETTINGS

_NOTICE = 120.0  # seconds in which a site answers that does not take long: each message starts a process
_GOODBYE = 120.0  # seconds: a process starts before a site hears that the run is over, and deletes the keys of sums


class Settings(NamedTuple):
    """What the settings of a Flower run say."""

    out: Path
    sites: tuple[str, ...]
    keys: Mapping[str, bytes]
    """The public key of each site in PEM that is not revoked, by name; none without a kit."""
    terms: Terms

    @classmethod
    def of(cls, run: Mapping[str, Any]) -> Settings:
        """The settings in those of a run.

        Raises:
            InputError: one is missing or impossible.
        """
        out, kit = str(run.get("out") or ""), str(run.get("kit") or "")
        if not out:
            raise InputError("out: the run's settings do not say in which folder of the SuperLink's machine it is kept")
        keys: Mapping[str, bytes] = {}
        if kit:
            roster = kits.server_kit(Path(kit), Path(out)).roster
            sites, keys = tuple(member.name for member in roster.members), roster.keys()
        else:
            sites = tuple(name for name in str(run.get("sites") or "").split(",") if name)
        if not sites or len(set(sites)) < len(sites):
            raise InputError(f"sites: {','.join(sites)!r} does not name each site once")
        numbers = {}
        for name, usual in {"deadline": 600.0, "lost-after": 30.0, "most-norm": 100.0}.items():
            numbers[name] = float(run.get(name) or usual)
            if not numbers[name] > 0:
                raise InputError(f"{name}: {numbers[name]:g} is not possible, give a number above 0")
        count = len(keys or sites)
        least, start = int(run.get("min-sites") or count // 2 + 1), int(run.get("start-with") or count)
        if not 1 <= least <= start <= count:
            raise InputError(f"min-sites {least} and start-with {start} are not possible with {count} sites")
        patience = Patience(least, numbers["deadline"], numbers["lost-after"], _NOTICE)
        return cls(Path(out), sites, keys, Terms(patience, numbers["most-norm"], start, _GOODBYE))


def app_of_server(study: Path) -> ServerApp:
    """The app of a server.

    Args:
        study: the file of the study, in the app.
    """
    app = ServerApp()

    def main(grid: Grid, context: Context) -> None:
        say, in_files = Events(), {one.option or name: name for name, one in SETTINGS.items()} | {"out": "out"}
        with warnings_as_events(say), as_options(), in_a_file(in_files):
            settings = Settings.of(context.run_config)
            whole = study_for(study, "Flower")
            if whole.secure_aggregation and not settings.keys:
                raise InputError(f"secure_aggregation needs the sites' keys: make the app with {option('kit')}")
            say(f"idiolect {__version__}: {whole.name} at {listed(settings.sites, 10)}; the run is in {settings.out}")
            link = GridLink(grid, settings.sites, say, settings.keys)
            settings.out.parent.mkdir(parents=True, exist_ok=True)
            result = conduct(
                whole, link, settings.sites, settings.out, say, terms=settings.terms, public=settings.keys,
                again="flwr run of the same app",
            )  # fmt: skip
            Console(width=120).print(result.table())
            say(f"report: {result.page}")
            if result.diverged:
                raise RunError(f"diverged: {listed([str(one) for one in result.diverged], 5)}")

    app.main()(main)
    return app
