"""The study as the server runs it: without data of its own, and with what the sites have agreed on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import PrivateAttr

from idiolect.core.errors import InputError
from idiolect.core.import_path import no_imports
from idiolect.data import FederatedData
from idiolect.data.partitions.apart import check_order, splitting_of
from idiolect.deploy.make import Elsewhere
from idiolect.deploy.schema import Inputs, TargetPart
from idiolect.federation.data.agreement import Agreement
from idiolect.federation.data.backbone import check
from idiolect.federation.rounds import checks
from idiolect.federation.server.engine import Remote
from idiolect.federation.server.run import RELEASES, SiteRun
from idiolect.simulation import Job, thresholds
from idiolect.simulation.privacy import Releases
from idiolect.studies import Study
from idiolect.studies.backbones import check_frozen, is_frozen
from idiolect.studies.method_use import Use
from idiolect.studies.study_file import settings_of_file

_ONLY_HERE = (
    "dataset", "data", "data_dir", "target", "client_column", "drop", "resize", "header", "columns", "missing",
    "unlabelled", "categorical", "layout", "partition", "clients", "sizes", "keep", "shifts", "new_clients",
    "new_shifts", "attacks",
)  # fmt: skip
"""Settings of a study that say what data a simulation has: at sites their owners decide."""


class SiteStudy(Study):
    """A study whose samples are at the sites of a federation."""

    _at_sites: FederatedData | None = PrivateAttr(None)
    _site_run: SiteRun | None = PrivateAttr(None)
    _folder: Path | None = PrivateAttr(None)

    def with_agreement(self, data: FederatedData, site_run: SiteRun | None = None) -> SiteStudy:
        """The study with what the sites have agreed on, and their run."""
        study = self.model_copy()
        study._at_sites, study._site_run = data, site_run
        return study

    def at_server(self, site_run: SiteRun, folder: Path | None = None) -> SiteStudy:
        """The study as the server runs it: what a model predicts for a sample stays at the site, also as a file.

        ``folder`` is the run's, where noisy sums are counted, if it goes on.
        """
        data, study = site_run.agreement.federation(self.name), self.model_copy(update={"save_predictions": False})
        study = study.with_agreement(data, site_run)
        study._folder = folder
        return study

    def federation(self) -> FederatedData:
        """Who has how many samples of which class; the samples themselves are at the sites."""
        if self._at_sites is None:
            raise InputError("the samples are at the sites: run this study with idiolect federation serve")
        return self._at_sites

    def samples(self) -> FederatedData:
        """As ``federation``."""
        return self.federation()

    def job(self, use: Use, seed: int, federation: FederatedData) -> Job:
        """The job of a method and a seed, whose clients' states are at the sites."""
        job = super().job(use, seed, federation)
        secret = None if self._site_run is None else self._site_run.secret
        releases = None if self._folder is None else Releases(self._folder / RELEASES, (use.label, seed))
        return job._replace(build=Remote(job.build), secret=secret, releases=releases)

    def elsewhere(self, job: Job) -> Elsewhere | None:
        """What the server knows of the sites' samples, and the method that they run.

        Raises:
            InputError: the backbone on this machine is not that of the run.
        """
        if self._site_run is None or not isinstance(job.build, Remote):
            return None
        backbone = self._site_run.agreement.backbone
        check(self, backbone.digest if backbone else "")
        return Elsewhere(job.build.real, self._site_run.inputs)


def look(path: Path, federation: str) -> Study:
    """A study in a file, whose samples are at the sites of a federation; code that it names is not imported.

    Raises:
        InputError: it cannot be read.
    """
    settings = settings_of_file(path)
    here = {} if {"data", "dataset", "data_dir"} & set(settings) else {"data": f"given: the sites of {federation}"}
    with no_imports():
        try:
            return Study(**settings | here)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None


def check_methods(
    study: SiteStudy, inputs: Inputs, classes: Sequence[str], predicted: Sequence[str], *, several: bool
) -> None:
    """Check that a study's methods and its protocol fit what the sites have, before they count their samples.

    Args:
        study: the study.
        inputs: the form of the samples.
        classes: of all sites.
        predicted: the names of the numbers or labels that are predicted, if they are.
        several: whether they are labels.

    Raises:
        InputError: a method needs what is not there, or sites that are not drawn; weights are of other classes, or no
            threshold can be chosen.
    """
    some, goals = ((1,) * len(classes),), tuple(TargetPart(name=name, mean=0.0, std=1.0) for name in predicted)
    data = Agreement(
        inputs=inputs, classes=tuple(classes), train=some, test=some, validation=some, names=("",), targets=goals,
        several=several, counts=((1, 1),) * len(goals) if several else some,
    ).federation(study.name)  # fmt: skip
    thresholds.check(study.protocol.threshold, data.task, data.classes)
    if is_frozen(study):  # what its features are like is not known yet
        return
    at_sites = study.with_agreement(data)
    for use in study.methods:
        job = at_sites.job(use, study.seeds[0], data)
        checks.all_are_asked(job.name, job.build(), study.participation)


def study_for(path: Path, federation: str) -> SiteStudy:
    """The study in a file, for the sites of a federation.

    Raises:
        InputError: it cannot be read, or has settings that only a simulation can follow.
    """
    study = look(path, federation)
    given = settings_of_file(path)
    if extras := [name for name in _ONLY_HERE if name in given and getattr(study, name)]:
        raise InputError(
            f"{path}: {extras[0]} is for a simulation, and here each site has its own data: leave {extras[0]} out"
        )
    for setting, code in study.imports().items():
        raise InputError(f"{path}: {setting} {code} is code of its own, which no site imports: take a built-in one")
    try:
        check_order(splitting_of(study.split), study.group_column)
        for use in study.methods if is_frozen(study) else ():
            check_frozen(study.of(use))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    if study.precision != "float32":
        raise InputError(
            f"{path}: precision {study.precision} is for a simulation, and sites train in float32: leave precision out"
        )
    if study.protocol.clients == "new" or study.protocol.observe:
        raise InputError(
            f"{path}: protocol {study.protocol.written()} needs the samples of all clients: leave out new clients and "
            "observe"
        )
    if study.patience is not None and study.protocol.stages == ("trained",):
        raise InputError(
            f"{path}: patience={study.patience} ends at no round that is known in advance, and at the stage trained "
            "sites keep their models after the last one alone: measure another stage too, as also: [personalised]"
        )
    settings = study.model_dump(exclude_unset=True) | {"data": f"given: the sites of {federation}"}
    return SiteStudy(
        **{k: v for k, v in settings.items() if k not in _ONLY_HERE or k == "data"} | {"checkpoint_every": 1}
    )
