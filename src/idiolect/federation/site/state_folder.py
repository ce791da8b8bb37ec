"""A site's state folder after a study: which models are in it, and one of them as a bundle."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pydantic

from idiolect.core.documents import read_json
from idiolect.core.errors import IdiolectError, InputError, argument, listed, nearest, option
from idiolect.federation.data.agreement import Agreement
from idiolect.federation.data.backbone import check
from idiolect.federation.messages import Refusal
from idiolect.federation.rounds.study import study_of
from idiolect.federation.site.features import SiteFeatures
from idiolect.federation.site.participation import AGREEMENT, belonging, place
from idiolect.federation.site.personal_model import FILE, SiteCell, SiteModel, read
from idiolect.federation.site.personal_state import Vault
from idiolect.studies import Study

log = logging.getLogger(__name__)


class PastRun(NamedTuple):
    """A run that a site took part in, from its state folder."""

    study: Study
    digest: str
    """Of the study."""
    run: str
    agreement: Agreement
    number: int
    folder: Path
    start: float

    def __str__(self) -> str:
        return f"{self.study.name} (run {self.run[:8]}, {time.strftime('%Y-%m-%d %H:%M', time.localtime(self.start))})"


def site_model(
    folder: Path, *, method: str | None = None, seed: int | None = None, study: str | None = None,
    key: Path | None = None,
) -> SiteModel:  # fmt: skip
    """A site's personal model from its state folder; warns if it is not that of a study's last round.

    Args:
        folder: the site's state.
        method: label or name, where the study has several.
        seed: where the study has several.
        study: its name, or the first digits of its run, where the folder has several; None takes the newest.
        key: the file of the key, if the state is encrypted.

    Raises:
        InputError: there is no such study or model, it is not said which, or it cannot be read.
    """
    run = _choice(folder, study)
    label, seed = _label(run.study, method), _seed(run.study, seed)
    use = next(use for use in run.study.methods if use.label == label)
    path = place(run.folder, label, seed) / FILE
    if key is not None and not key.exists():
        raise InputError(f"there is no key {key}: give the file that idiolect site had as {option('state_key')}")
    if not path.exists():
        raise InputError(
            f"{folder} has no model of {label}, seed {seed}, yet: a site's model is kept when it is measured, which is "
            f"every {run.study.evaluation} rounds and after the last one; let the site take part until then"
        )
    check(run.study, run.agreement.backbone.digest if run.agreement.backbone else "")
    vault = Vault.of(folder, key)
    cell = SiteCell(run.study, run.agreement, run.number, use, seed)
    model = read(path, vault, cell, belonging(run.digest, run.run, label, seed))
    model.features = SiteFeatures(folder, vault)
    if run.study.protocol.round == "best_validation":
        log.warning(
            "%s: the model of %s is from round %d of at most %d, this site's last evaluation of it; the study may "
            "count an earlier round, the best on validation samples, whose models no site keeps",
            folder, label, model.round, run.study.rounds,
        )  # fmt: skip
    elif model.round < run.study.rounds:
        log.warning(
            "%s: the model of %s is from round %d of %d: the study has not ended, or this site was away at its last "
            "evaluation", folder, label, model.round, run.study.rounds,
        )  # fmt: skip
    return model


def _choice(folder: Path, study: str | None) -> PastRun:
    every = sorted(_past_runs(folder), key=lambda run: -run.start)
    if not every:
        raise InputError(f"{folder} has no study yet: take part in one with idiolect site {option('state', folder)}")
    if study is None:
        if len(every) > 1:
            others = listed([str(run) for run in every[1:]], 5)
            log.warning(
                "%s: the newest study is taken, %s; %s takes another one: %s",
                folder, every[0], argument("study"), others,
            )  # fmt: skip
        return every[0]
    matches = [run for run in every if run.study.name == study] or [k for k in every if k.run.startswith(study)]
    if not matches:
        raise InputError(f"{folder} has no study {study!r}: it has {listed([str(run) for run in every], 10)}")
    return matches[0]


def _past_runs(folder: Path) -> Iterator[PastRun]:
    for path in folder.glob(f"*/*/{AGREEMENT}"):
        try:
            about = read_json(path)
            start = float(about.get("began", path.stat().st_mtime))
            agreement, number = Agreement.model_validate(about["agreement"]), int(about["number"])
            study, digest, run = study_of(about["study"]), about["digest"], about["run"]
            yield PastRun(study, digest, run, agreement, number, path.parent, start)
        except (IdiolectError, Refusal, OSError, ValueError, KeyError, TypeError, pydantic.ValidationError) as error:
            what = " ".join(str(error).split())[:200]
            raise InputError(f"{path} cannot be read ({what}): restore it, or remove {path.parent}") from None


def _label(study: Study, method: str | None) -> str:
    labels = [use.label for use in study.methods]
    if method is None:
        if len(labels) > 1:
            raise InputError(f"{study.name} has {len(labels)} methods: give {option('method')} as {_either(labels)}")
        return labels[0]
    matches = [use.label for use in study.methods if method == use.label]
    matches = matches or [use.label for use in study.methods if method == use.name]
    if not matches:
        raise InputError(f"{study.name} has no method {method!r}; {nearest(method, labels)}: {_either(labels)}")
    return matches[0]


def _seed(study: Study, seed: int | None) -> int:
    if seed is None:
        if len(study.seeds) > 1:
            few = _either([str(seed) for seed in study.seeds])
            raise InputError(f"{study.name} has {len(study.seeds)} seeds: give {option('seed')} as {few}")
        return study.seeds[0]
    if seed not in study.seeds:
        raise InputError(f"{study.name} has no seed {seed}: give {_either([str(seed) for seed in study.seeds])}")
    return seed


def _either(names: list[str]) -> str:
    return f"one of {listed(names, 40)}"
