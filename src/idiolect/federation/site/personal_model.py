"""A site's personal model in its state folder: kept whenever it is measured, and read again as a bundle.

Beside the versions of the client's state there is a file with what a prediction needs: the message that the site was
last measured with, the client's state as the server counts it, and the same after ``personalise``; and of the site's
test samples what was predicted for them, and their summary for ``idiolect watch``. Nothing of it is ever sent.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import torch
from torch import Tensor

from idiolect.core import tree
from idiolect.core.errors import InputError
from idiolect.core.method import Down
from idiolect.core.tree import Tree
from idiolect.deploy import card, labels, reference
from idiolect.deploy.about_file import about_features, with_memory
from idiolect.deploy.bundle import Bundle, Personal, write
from idiolect.deploy.groups import scores_of
from idiolect.deploy.make import about_of, with_messages
from idiolect.deploy.numbers import errors_of, half_widths, scaled
from idiolect.deploy.predict import number_table, prediction_table, threshold_of
from idiolect.deploy.provenance import provenance_of
from idiolect.deploy.samples import Samples
from idiolect.deploy.schema import About, ClientPart, Evaluation, Site
from idiolect.engines.threads import OneThread
from idiolect.federation.data.agreement import Agreement
from idiolect.federation.data.samples import SiteSamples
from idiolect.federation.messages import by_path, pack
from idiolect.federation.site.features import SiteFeatures
from idiolect.federation.site.personal_state import Vault
from idiolect.simulation import label_measures, measures
from idiolect.simulation.client_runner import EvaluationResult
from idiolect.simulation.thresholds import HALF
from idiolect.studies import Study
from idiolect.studies.method_use import Use, title_of

# N test samples of the site, C classes

log = logging.getLogger(__name__)

FILE = "model.state"
_FIX = "restore it, or take part in the study again"


class SiteCell(NamedTuple):
    """One method with one seed of a study, at one site."""

    study: Study
    agreement: Agreement
    number: int
    """The client's."""
    use: Use
    seed: int

    @property
    def site(self) -> str:
        """The site's name."""
        return self.agreement.names[self.number]


class SiteModel(Bundle):
    """A site's personal model, as a bundle that is read from its state folder.

    Attributes:
        cell: of which study it is.
        fingerprint: of the samples that the site had.
        features: makes features of the site's samples, where the model was read from a state folder.
    """

    features: SiteFeatures | None = None

    def __init__(
        self,
        folder: Path,
        about: About,
        digest: str,
        cell: SiteCell,
        arrays: Mapping[str, Tensor],
        fingerprint: str = "",
    ) -> None:
        super().__init__(folder, about, digest)
        self.cell, self.fingerprint, self._arrays = cell, fingerprint, arrays

    @property
    def round(self) -> int:
        """After which the model is."""
        return self.about.key.round

    def on_features(self) -> SiteModel:
        """The same model behind a frozen backbone: its network takes the features that it makes."""
        return SiteModel(
            self.folder, about_features(self.about), self.digest, self.cell, self._arrays, self.fingerprint
        )

    def model(self, name: str | int | None = None) -> Personal:
        """The model.

        Raises:
            InputError: there is none of this name, or the file is not that of this method and network.
        """
        self._place(name)
        return Personal(self._message, self._tree("client", self._template.client))

    @cached_property
    def before(self) -> Tree:
        """The client's state before ``personalise``."""
        return self._tree("before", self.fresh)

    def predictions(self, level: float | None = None) -> list[pa.Table]:
        """What it predicted for the site's test samples when it was measured, with their labels; see ``predict``.

        Raises:
            InputError: the level is not between 0 and 1.
        """
        p_NC, y_N, at = self._arrays["test/p_NC"], self._arrays["test/y_N"], self.thresholds()
        if self.about.targets:
            half_D = None if level is None else half_widths(self.about, level)
            numbers = pd.DataFrame({t.name: y_N[:, d].numpy() for d, t in enumerate(self.about.targets)})
            return [number_table(p_NC, self.about, half_D, numbers)]
        if names := self.about.labels:
            half_L = None if level is None else half_widths(self.about, level)
            truth = labels.joined(y_N.numpy() > 0, names)
            logp_NL2 = torch.stack([1 - p_NC, p_NC], -1).log()
            return [labels.table(logp_NL2, self.about, at, half_L, {f"{labels.LABELS} of the data": truth})]
        classes = self.about.classes
        threshold = None if level is None else threshold_of(self.about, level)
        truth = pd.DataFrame({"label": [classes[c] for c in y_N.tolist()]})
        return [prediction_table(p_NC, classes, threshold, truth, *at)]

    @property
    def tested(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """What it predicted for the site's test samples when it was measured, their labels, and their groups, if any.

        Log-probabilities of classes (N, C), or without and with each label (N, L, 2), or numbers (N, D).
        """
        p_NC, y_N, group_N = (self._arrays.get(f"test/{name}") for name in ("p_NC", "y_N", "group_N"))
        assert p_NC is not None
        assert y_N is not None
        if self.about.targets:
            return p_NC, y_N, group_N
        return (torch.stack([1 - p_NC, p_NC], -1) if self.about.labels else p_NC).log(), y_N, group_N

    def unwatched(self, least: int) -> str:
        """Why it cannot be watched, which takes so many of the site's own test samples."""
        if not may_be_last(self.cell.study, self.round):
            return f"it is from round {self.round} of {self.cell.study.rounds}: let the site take part in the last one"
        if (count := len(self._arrays["test/y_N"])) < least:
            return f"the site has {count} test samples, and {least} are needed: take part with more samples"
        if self.task.network.buffers == "local":
            return super().unwatched(least)
        return "what its network makes of the site's samples has no covariance: take another model"

    def check(self) -> None:
        """Do nothing: the file was checked when it was read."""

    def other(self, name: str) -> bytes:
        """The content of one more file.

        Raises:
            InputError: there is none.
        """
        if name not in self.about.files:
            raise InputError(f"{self.folder} has no {name}")
        return self._arrays[f"files/{name}"].numpy().tobytes()

    @cached_property
    def _message(self) -> Down:
        down: Down = self._tree("down", self._template.down)
        return down

    def _tree(self, part: str, like: Any) -> Any:
        leaves = []
        with self._reading():
            for path, form in by_path(part, like).items():
                leaf = self._arrays[path]
                if leaf.ndim != form.ndim or leaf.dtype != form.dtype:
                    raise ValueError(f"{path} has another form")
                leaves.append(leaf)
        return tree.flatten(like)[1](leaves)

    def to_bundle(self, out: Path) -> Bundle:
        """The model as a bundle on disk, which is not encrypted.

        Raises:
            InputError: the folder is not empty.
            RunError: the disk is full.
        """
        more: dict[str, str | bytes] = {name: self.other(name) for name in self.about.files}
        model = self.model()
        return write(out, self.about, model.down.shared, [(model.down.own, model.client)], card.text(self.about), more)


def model_round(study: Study, kind: str, round: int) -> int | None:
    """After which round the model is that is kept of a message; None of a message that brings none, or not alone.

    It is that of the stage "personalised", also where a study measures only other stages.
    """
    stages = study.protocol.stages
    if kind == "evaluate":
        return round
    if "personalised" in stages:
        return None
    if "trained" not in stages:
        return round if kind == "received" else None
    return study.rounds if kind == "local" and round == study.rounds + 1 else None  # as it was before that training


def may_be_last(study: Study, round: int) -> bool:
    """Whether a method's training may end with a round in which it was measured; a site is not told why it ends."""
    return study.patience is not None or round == study.rounds


def keep(
    path: Path, vault: Vault, cell: SiteCell, belongs: Mapping[str, Any], round: int, before: Tree, model: Personal,
    outcome: EvaluationResult, samples: SiteSamples, mark: str,
) -> None:  # fmt: skip
    """Write a personal model that was just measured, and if it can be watched what that needs.

    Args:
        path: of the file.
        vault: writes it.
        cell: what it is a model of.
        belongs: what the file belongs to; it is not read as anything else's.
        round: after which it is.
        before: the client's state before ``personalise``.
        model: what the client received for itself and for all, and its state after ``personalise``.
        outcome: of the model, with what it predicts.
        samples: the site's.
        mark: their fingerprint.

    Raises:
        RunError: the disk is full or the folder cannot be written.
    """
    assert outcome.p_NC is not None
    y_N = samples.truth_N[samples.test_N]
    arrays = by_path("down", model.down) | by_path("client", model.client) | by_path("before", before)
    arrays |= {"test/p_NC": outcome.p_NC, "test/y_N": y_N}
    group_N = None if samples.group_N is None else samples.group_N[samples.test_N]
    arrays |= {} if group_N is None else {"test/group_N": group_N}
    if at := [value for metric, value in (outcome.measures or {}).items() if metric.startswith("threshold")]:
        arrays["test/threshold_L"] = torch.tensor(at, dtype=torch.float64)
    if may_be_last(cell.study, round) and len(y_N) >= reference.LEAST:
        site = SiteModel(path.parent, _about(cell, round, arrays), "", cell, arrays)
        own = Samples(samples.x_N[samples.test_N], learnt(y_N, cell.agreement), group_N)
        arrays |= _watched(site, own, outcome.p_NC.argmax(1))
    vault.save(path, pack(dict(belongs) | {"round": round, "fingerprint": mark}, arrays))


def _watched(site: SiteModel, samples: Samples, said_N: Tensor) -> dict[str, Tensor]:
    """What watching needs of a site's test samples and of the classes that they were taken for, if it can be had."""
    if site.about.network.features is not None:
        site = site.on_features()  # which the samples are
    if site.task.network.buffers == "local":
        return {}
    try:
        with OneThread():
            content = reference.of_site(site, samples, said_N, site.key("watch"))
    except RuntimeError as error:  # features without a covariance; the model is whole without it
        log.warning("%s, seed %d: this model cannot be watched (%s)", site.cell.use.label, site.cell.seed, error)
        return {}
    return {f"files/{reference.FILE}": torch.frombuffer(bytearray(content), dtype=torch.uint8)}


def read(path: Path, vault: Vault, cell: SiteCell, belongs: Mapping[str, Any]) -> SiteModel:
    """A personal model that was kept.

    Raises:
        InputError: it has changed, belongs to something else, or the key is not the right one.
    """
    message = vault.load(path, belongs, _FIX)
    try:
        round, mark = int(message.about["round"]), str(message.about["fingerprint"])
        about = _about(cell, round, message.arrays)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({type(error).__name__}): {_FIX}") from None
    files = {name.removeprefix("files/") for name in message.arrays if name.startswith("files/")}
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    about = about.model_copy(update={"files": dict.fromkeys(sorted(files), digest)})
    about = with_messages(about, cell.agreement.federation(cell.study.name))
    site = SiteModel(path.parent, about, digest, cell, message.arrays, mark)
    site.about = with_memory(about, site.model().client, sum(cell.agreement.train[cell.number]))
    return site


def fingerprint(samples: SiteSamples) -> str:
    """Names a site's samples, their labels and which of them are for tests."""
    digest = hashlib.sha256()
    more = (array for array in (samples.group_N, samples.value_ND) if array is not None)
    for array in (samples.own_N, *samples[1:5], *more):
        digest.update(f"{tuple(array.shape)} {array.dtype}".encode() + array.contiguous().numpy().tobytes())
    return digest.hexdigest()


def _about(cell: SiteCell, round: int, arrays: Mapping[str, Tensor]) -> About:
    p_NC, y_N = arrays["test/p_NC"], arrays["test/y_N"]
    group_N, threshold_L = arrays.get("test/group_N"), arrays.get("test/threshold_L")
    study = cell.study.of(cell.use).model_dump(mode="json")
    data = cell.agreement.federation(cell.study.name)
    by, several = data.score, cell.agreement.labels
    if several:
        at = HALF if threshold_L is None else threshold_L
        score = label_measures.of_predictions(p_NC, y_N, several, at)["micro_f1"]
    elif data.targets:
        score = float((p_NC - y_N).square().mean())
    else:
        said_NC = p_NC if threshold_L is None else measures.at(float(threshold_L), p_NC)
        score = float((said_NC.argmax(1) == y_N).double().mean())
    train, test = (sum(counts[cell.number]) for counts in (cell.agreement.train, cell.agreement.test))
    about = about_of(
        cell.study.job(cell.use, cell.seed, data), data, study,
        {"name": cell.use.name, "title": title_of(cell.use), "options": cell.use.options},
        kind="models", round=round, names=(cell.site,), inputs=cell.agreement.inputs, client=cell.number,
        evaluation=Evaluation(
            protocol="this site's personal model on its own test samples",
            clients=(ClientPart(name=cell.site, train=train, test=test, personal=score),),
        ),
        provenance=provenance_of(data, study, {}),
    )  # fmt: skip
    if threshold_L is not None:
        about = about.model_copy(update={"thresholds": (tuple(threshold_L.tolist()),)})
    how = f"{by.name} {by.brief(score)} on" if data.targets else f"{100 * score:.1f}% of"
    site = Site(
        ships="personal",
        weights={"personal": 1.0},
        samples=len(y_N),
        compared={},
        against=None,
        why=f"it is the personal model as {cell.site} trained it; {how} {len(y_N)} test samples"
        + " right" * (data.targets is None),
    )
    if data.targets:
        return about.model_copy(update={"site": site.model_copy(update={"errors": errors_of(p_NC - y_N, group_N)})})
    scores, score_weights = scores_of(p_NC.gather(1, y_N[:, None])[:, 0].clamp(0, 1), group_N)
    more = {"scores": scores, "score_weights": score_weights}
    return about.model_copy(update={"site": site.model_copy(update=more)})


def learnt(truth_N: Tensor, agreement: Agreement) -> Tensor:
    """What networks learn of a site's classes, labels (N, L) or numbers (N, D): these scaled, float64."""
    return scaled(truth_N, agreement.targets) if agreement.targets and not agreement.several else truth_N
