"""Writes the folder of a Flower app: few lines, which call the idiolect that is installed where they run."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from idiolect.core import files
from idiolect.core.errors import InputError, option
from idiolect.core.version import __version__, digest
from idiolect.federation.server.study import study_for
from idiolect.federation.trust import kits
from idiolect.federation.trust.roster import NAME
from idiolect.runs.folder import STUDY_FILE

PACKAGE = "idiolect_app"
_SERVER = '''"""The server of the study: idiolect runs it, as installed on this machine."""

from pathlib import Path

from idiolect.federation.flower import server_app

app = server_app(Path(__file__).parent / "study.yaml")
'''
_CLIENT = '''"""A site: idiolect answers for it, as installed on this machine, by the settings of its SuperNode."""

from idiolect.federation.flower import client_app

app = client_app()
'''
_PROJECT = """# A Flower app: its code calls the idiolect that is installed on each machine. Flower installs nothing.
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = {name}
version = "1.0.0"
description = {description}
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "idiolect"

[tool.flwr.app.components]
serverapp = "{package}.server_app:app"
clientapp = "{package}.client_app:app"

[tool.flwr.app.config]
sites = {sites}  # in the order of the clients' numbers
kit = {kit}  # of the server, on the SuperLink's machine; its roster says which sites there are
out = {out}  # folder of the run on the SuperLink's machine; a run in it continues
min-sites = {least}  # without which a round of all does not close; of fewer, the same share
start-with = {start}  # that must be there before the first round
deadline = 600.0  # seconds after which a round closes with those that answered
lost-after = 30.0  # seconds offline after which a site is not waited for
most-norm = 100.0  # an upload counts up to this many times the median norm of a round
simulated-sites = {simulated}  # only in Flower's simulation: folder with a file SITE.yaml for each site
"""


def write_app(
    study: Path, out: Path, run: Path, *, sites: Sequence[str] = (), kit: Path | None = None,
    simulated: Path | None = None,
) -> tuple[str, ...]:  # fmt: skip
    """Write an app that runs a study; return its sites.

    Args:
        study: its file.
        out: folder of the app, which must not exist.
        run: folder of the run on the SuperLink's machine.
        sites: their names, by the clients' numbers, without a kit.
        kit: the server's, whose roster names the sites.
        simulated: folder with a file for each site, for Flower's simulation.

    Raises:
        InputError: the study, the names or the kit cannot be used, or the folder exists.
    """
    whole = study_for(study, "Flower")
    if (kit is None) == (not sites):
        raise InputError(f"give {option('sites')}, as north,south, or {option('kit')}, the server's, with their keys")
    if kit is not None:
        sites = tuple(member.name for member in kits.server_kit(kit).roster.members)
    elif whole.secure_aggregation:
        raise InputError(f"{study}: secure_aggregation needs the sites' keys: give {option('kit')}")
    if wrong := [site for site in sites if not re.match(NAME, site)]:
        raise InputError(f"{option('sites')}: {wrong[0]!r} is no name of a site: letters, digits, - and _")
    if len({site.casefold() for site in sites}) < len(sites):
        raise InputError(f"{option('sites')}: two sites have the same name: give each its own")
    if simulated is not None and (absent := [site for site in sites if not (simulated / f"{site}.yaml").is_file()]):
        raise InputError(f"{simulated} has no {absent[0]}.yaml: each simulated site needs its own file")
    project = _PROJECT.format(
        name=_text("idiolect-" + re.sub("[^a-z0-9]+", "-", whole.name.lower()).strip("-")), package=PACKAGE,
        description=_text(f"{whole.name}, by idiolect {__version__}, whose files have the digest {digest()}"),
        sites=_text(",".join(sites)), kit=_path(kit), out=_path(run), least=len(sites) // 2 + 1, start=len(sites),
        simulated=_path(simulated),
    )  # fmt: skip
    contents: dict[str, bytes | str] = {
        "pyproject.toml": project,
        f"{PACKAGE}/__init__.py": '"""A study as an app of Flower."""\n',
        f"{PACKAGE}/server_app.py": _SERVER,
        f"{PACKAGE}/client_app.py": _CLIENT,
        f"{PACKAGE}/{STUDY_FILE}": study.read_bytes(),
    }
    with files.drafted_folder(out) as draft:
        (draft / PACKAGE).mkdir()
        for name, content in contents.items():
            files.write(draft / name, content)
    return tuple(sites)


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _path(path: Path | None) -> str:
    return _text("" if path is None else str(path.absolute()))
