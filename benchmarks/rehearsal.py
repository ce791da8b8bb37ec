"""A federation's study on the same samples in one place, as a simulation: the federation gives the same numbers.

The tests of the federation use it as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from idiolect.core.method import Blocks
from idiolect.data import FederatedData
from idiolect.federation.data.agreement import Agreement, agree, common_form, data_of
from idiolect.federation.data.backbone import Backbone
from idiolect.federation.data.samples import SiteFiles, SiteSamples, division_of, reading_of, sums
from idiolect.federation.data.targets import common_names
from idiolect.federation.server.study import SiteStudy
from idiolect.models import pretrained
from idiolect.simulation import Job
from idiolect.studies import Result, Study, run
from idiolect.studies.backbones import is_frozen, normalise_of
from idiolect.studies.method_use import Use
from idiolect.studies.progress import Watcher


def rehearsed(
    study: SiteStudy, samples: Mapping[str, SiteFiles], out: Path, engine: str = "sequential",
    watcher: Watcher | None = None,
) -> Result:  # fmt: skip
    """Run the same study on the same samples in one place, as a simulation: the federation gives these numbers.

    Raises:
        InputError: the samples do not fit each other.
    """
    offers = {site: own.offer(study.task, reading_of(study), study.group_column) for site, own in samples.items()}
    inputs, classes = common_form(offers, study.task)
    every, predicted = enumerate(samples.values()), common_names(offers)
    how = division_of(study) | {"labels": predicted}
    ready = [own.encode(inputs, classes, study.data_seed, k, look=False, **how) for k, own in every]
    if is_frozen(study):
        backbone = pretrained.frozen_backbone(study.model, study.precision)
        assert backbone is not None
        ready = [one._replace(x_N=torch.cat([backbone(x_B) for x_B in torch.split(one.x_N, 16)])) for one in ready]
    summed = {site: sums(one, len(classes)) for site, one in zip(samples, ready, strict=True)}
    agreement = agree(
        inputs, classes, summed, normalise_of(study), Backbone.of(study), frozen=is_frozen(study),
        predicted=predicted, labels=study.task == "multilabel",
    )  # fmt: skip
    data = pooled(ready, agreement, study.name)
    whole = _Together(**study.model_dump(exclude_unset=True)).with_agreement(data)
    return run(whole, out, engine=engine, watcher=watcher)


class _Together(SiteStudy):
    """The same study where all samples are in one place."""

    def job(self, use: Use, seed: int, federation: FederatedData) -> Job:
        """The job of a method and a seed, as in any simulation."""
        return Study.job(self, use, seed, federation)


def pooled(sites: Sequence[SiteSamples], agreement: Agreement, name: str) -> FederatedData:
    """The clients' data in one place, for a simulation of the federation."""
    starts = np.cumsum([0, *(len(site.y_N) for site in sites)]).tolist()
    train, test, validation = (
        tuple(getattr(site, part) + start for site, start in zip(sites, starts, strict=False))
        for part in ("train_N", "test_N", "validation_N")
    )
    x_R, y_R = (torch.cat([getattr(site, name) for site in sites]) for name in ("x_N", "y_N"))
    values = [site.value_ND for site in sites if site.value_ND is not None]
    value_RD = torch.cat(values) if values else None
    data = data_of(agreement, name, x_R, y_R, train, test, validation, value_RD)
    groups = [site.group_N for site in sites if site.group_N is not None]
    blocks = [site.blocks for site in sites if site.blocks is not None]
    return replace(
        data, group_R=torch.cat(groups) if len(groups) == len(sites) else None,
        blocks=Blocks(*map(torch.cat, zip(*blocks, strict=True))) if blocks else None,
    )  # fmt: skip
