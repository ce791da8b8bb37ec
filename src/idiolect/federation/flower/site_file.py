"""A site's settings where its messages come through a SuperNode: a file that its ``--node-config`` names."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import filelock
import pydantic
from pydantic import BaseModel, ConfigDict, model_validator

from idiolect.core.documents import read_yaml
from idiolect.core.errors import InputError, listed
from idiolect.data.custom.form import form_of
from idiolect.federation.data.samples import SiteFiles
from idiolect.federation.events import Events
from idiolect.federation.site.personal_state import Vault
from idiolect.federation.site.worker import Worker
from idiolect.federation.trust import kits
from idiolect.federation.trust.policy import Policy
from idiolect.federation.trust.private_files import private_folder
from idiolect.federation.trust.roster import NAME, Name

NODE, SIMULATION, PARTITION = "idiolect", "simulated-sites", "partition-id"
"""The setting of a SuperNode that names the file; that of a run that names a simulation's folder of such files; and
Flower's number of a simulated SuperNode."""
VARIABLE, CLIENT = "IDIOLECT_SITE", "client-name"
"""The variable of the environment that names the file, where another program starts the SuperNode, or a folder of such
files; and the name by which NVFlare tells its SuperNodes apart."""
_WAIT = 600.0  # seconds for another message at this site to end


class SiteFile(BaseModel):
    """``site.yaml``. Paths are those of this machine, from the file's folder on.

    Attributes:
        kit: the site's kit, which secure aggregation needs; it has the site's name.
        site: its name, without a kit.
        state: folder of the personal model and of what it needs.
        state_key: file of the key that encrypts this folder, made if it does not exist.
        policy: file of what the server may ask.
        data: the samples, and the settings after it say how they are written, as the options of ``idiolect site`` do.
        target: column to predict.
        test: samples to test on.
        drop: columns to leave out.
        as_is: columns whose numbers are right although they look like another unit's.
        group_column: samples with the same value belong together.
        header: none, if the first line is a row.
        columns: names of all columns of a file without names.
        missing: marks of missing values.
        unlabelled: what becomes of rows without a target.
        categorical: columns whose numbers are codes.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    kit: Path | None = None
    site: Name | None = None
    state: Path
    state_key: Path | None = None
    policy: Path | None = None
    data: str
    target: str | None = None
    test: str | None = None
    drop: tuple[str, ...] = ()
    as_is: tuple[str, ...] = ()
    group_column: str | None = None
    header: str | None = None
    columns: str | None = None
    missing: str | None = None
    unlabelled: str | None = None
    categorical: str | None = None

    @model_validator(mode="after")
    def _whose(self) -> Self:
        if (self.kit is None) == (self.site is None):
            raise ValueError("give kit, or without one site, the site's name")
        return self

    @classmethod
    def read(cls, path: Path) -> Self:
        """The settings in a file.

        Raises:
            InputError: there is no such file, or it is not one of settings.
        """
        try:
            own = cls.model_validate(read_yaml(path))
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror}") from None
        except pydantic.ValidationError as error:
            first = error.errors()[0]
            reason = f"{'.'.join(map(str, first['loc'])) or 'it'}: {first['msg'].removeprefix('Value error, ')}"
            names = listed(cls.model_fields, 20)
            raise InputError(
                f"{path} does not say what a site has ({reason}): it has settings such as {names}"
            ) from None
        except ValueError as error:
            raise InputError(f"{path} is not YAML ({error}): fix it") from None
        places = {"kit": own.kit, "state": own.state, "state_key": own.state_key, "policy": own.policy}
        samples = {"data": own.data, "test": own.test}
        return own.model_copy(
            update={name: path.parent / place for name, place in places.items() if place is not None}
            | {name: str(path.parent / place) for name, place in samples.items() if place is not None}
        )


class Own(NamedTuple):
    """A site as its file says it."""

    settings: SiteFile
    site: str
    number: int | None
    """The client's; None without a kit: the server says it."""
    identity: kits.Identity | None

    @classmethod
    def of(cls, node: Mapping[str, Any], run: Mapping[str, Any]) -> Self:
        """The site of a SuperNode.

        Args:
            node: the SuperNode's settings.
            run: the run's, of which only a simulation's are believed.

        Raises:
            InputError: they name no file of a site, or it cannot be used.
        """
        settings = SiteFile.read(_file_of(node, run))
        if settings.kit is None:
            assert settings.site is not None
            return cls(settings, settings.site, None, None)
        kit = kits.site_kit(settings.kit, settings.state if settings.state.exists() else None)
        return cls(settings, kit.site, kit.number, kit.identity)

    def answer(self, content: bytes, number: int, say: Events) -> bytes:
        """The reply to a message.

        Args:
            content: of the message.
            number: the client's, as the server says it; that of a kit counts before it.
            say: for events.

        Raises:
            InputError: the files, the policy or the state cannot be used.
        """
        s = self.settings
        policy = Policy() if s.policy is None else Policy.read(s.policy)
        form = form_of(s.header, s.columns, s.missing, s.unlabelled, s.categorical)
        samples = SiteFiles(
            s.data, target=s.target, test=s.test, drop=s.drop, as_is=s.as_is, form=form, group_column=s.group_column
        )
        private_folder(s.state)
        number = number if self.number is None else self.number
        try:
            with filelock.FileLock(s.state / ".lock", timeout=_WAIT):
                vault = Vault.of(s.state, s.state_key)
                worker = Worker(samples, number, s.state, policy, vault, say, self.identity, brief=True)
                return worker.answer(content)
        except filelock.Timeout:
            raise InputError(f"another process uses {s.state}: stop it, or give another state") from None


def _file_of(node: Mapping[str, Any], run: Mapping[str, Any]) -> Path:
    if NODE in node:
        return Path(str(node[NODE]))
    if place := os.environ.get(VARIABLE):
        return _file_in(Path(place), str(node.get(CLIENT, "")))
    if PARTITION not in node or SIMULATION not in run or not str(run[SIMULATION]):
        raise InputError(
            f"this SuperNode does not say which site it is: start it with node-config '{NODE}=\"/path/of/site.yaml\"', "
            f"or with {VARIABLE}=/path/of/site.yaml in its environment"
        )
    sites, folder = str(run.get("sites", "")).split(","), Path(str(run[SIMULATION]))
    number = int(node[PARTITION])
    if not 0 <= number < len(sites):
        raise InputError(f"there are {len(sites)} sites, and this is SuperNode {number} of the simulation, from 0 on")
    return folder / f"{sites[number]}.yaml"


def _file_in(place: Path, client: str) -> Path:
    if not place.is_dir():
        return place
    if not re.match(NAME, client):
        raise InputError(f"{VARIABLE}: {place} is a folder, and this SuperNode has no {CLIENT}: name one file")
    return place / f"{client}.yaml"
