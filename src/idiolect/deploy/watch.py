"""Watching: has the world moved since the site joined? Without labels, at a stated rate of false alarms."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from idiolect.core import files
from idiolect.core.errors import InputError
from idiolect.deploy import card, reference
from idiolect.deploy.bundle import Bundle, log_probabilities, write
from idiolect.deploy.on_features import some_features
from idiolect.deploy.reference import Reference
from idiolect.engines.threads import OneThread
from idiolect.statistics import shift

# M new samples, P classes at the site, R named classes: these and the others together

LEAST = 10
"""New samples that are needed."""
_SHOWN = 5  # classes whose proportions a sentence gives


class Features(NamedTuple):
    """Whether new samples look like the site's own."""

    p: float
    farther: float
    """The share of pairs in which a new sample is farther from the site's classes than an own one; 0.5: no change."""
    moved: bool


class Share(NamedTuple):
    """A class's proportion: at the site, estimated for the new samples, and the estimate's 95 % interval."""

    before: float
    now: float
    low: float
    high: float


class Labels(NamedTuple):
    """Whether the classes have other proportions."""

    p: float
    shares: dict[str, Share]
    """By class; empty where the predictions do not tell."""
    moved: bool


class WatchResult(NamedTuple):
    """What the comparison of new samples with a site's own found."""

    level: float
    """At most this share of comparisons raises the alarm where nothing has moved."""
    own: int
    """Samples that the site was made from."""
    new: int
    features: Features
    labels: Labels
    near: tuple[tuple[int, ...], ...]
    """For each half, how many new samples were nearest to each class."""

    @property
    def alarm(self) -> bool:
        """Whether something moved."""
        return self.features.moved or self.labels.moved

    @property
    def adaptable(self) -> bool:
        """Whether only the classes' proportions moved, and the new ones are known."""
        return self.labels.moved and not self.features.moved and bool(self.labels.shares)

    def as_json(self) -> dict[str, Any]:
        """Everything, for JSON."""
        shares = {name: share._asdict() for name, share in self.labels.shares.items()}
        return {
            **self._asdict(), "alarm": self.alarm, "features": self.features._asdict(),
            "labels": self.labels._asdict() | {"shares": shares}, "sentences": sentences(self),
        }  # fmt: skip


def watch(bundle: Bundle, x_M: Tensor | Iterable[Tensor], *, level: float = 0.05) -> WatchResult:
    """Compare new samples with those that a site was made from.

    Two tests. Features: distances to the nearest class Gaussian, in the representation of the global model, of new
    samples and of the site's own, by a rank test. Labels: how often each class is the nearest one, by an exact test of
    counts. Each half of the own samples is compared by Gaussians of the other half, and the smaller p counts twice. So
    the level of both holds for every distribution. The alarm is Holm's of both. The new proportions are estimated from
    what the site's model names. Samples must be independent of each other.

    Args:
        bundle: that ``join`` wrote.
        x_M: new samples as stored, all at once or some at a time; without labels.
        level: of the alarm, 0 to 1.

    Raises:
        InputError: the bundle is not a site's or cannot be watched, or there are too few samples.

    Source: of the proportions see ``idiolect.statistics.shift.proportions``.
    """
    if not 0 < level < 1:
        raise InputError(f"level={level:g} is not between 0 and 1: give the share of false alarms, as 0.05")
    own, model = reference.read(bundle), bundle.model()
    frozen = bundle.about.network.features is not None
    seen = bundle.on_features() if frozen else bundle
    classes = len(bundle.about.classes)
    far: list[list[Tensor]] = [[], []]
    gaussians = [reference.gaussian(own, half) for half in range(2)]
    near_HP = torch.zeros_like(own.near_HP)
    said_C = torch.zeros(classes, dtype=torch.int64)
    with OneThread():
        for x_B in [x_M] if isinstance(x_M, Tensor | dict) else x_M:
            seen_B = some_features(bundle, x_B) if frozen else x_B  # once for the two lines that follow
            z_Bd, logp_BC = reference.features(seen, seen_B), log_probabilities(model, seen.unshifted, seen_B)
            for half, distances in enumerate(far):
                far_B, near_B = reference.nearest(z_Bd, gaussians[half], own.count_HP[half])
                distances.append(far_B)
                near_HP[half] += torch.bincount(near_B, minlength=len(near_HP[half]))
            said_C += torch.bincount(logp_BC.argmax(1), minlength=classes)
    if (count := int(said_C.sum())) < LEAST:
        raise InputError(f"{count} new samples are too few to tell whether something moved: give {LEAST} or more")
    features = _features(own, [torch.cat(distances) for distances in far])
    labels = _labels(own, near_HP, said_C[own.class_P], bundle.about.classes)
    first, second = sorted((features.p, labels.p))
    some, both = first <= level / 2, first <= level / 2 and second <= level
    alarms = [both or (some and p == first) for p in (features.p, labels.p)]
    return WatchResult(
        level, len(own.half_N), count, features._replace(moved=alarms[0]), labels._replace(moved=alarms[1]),
        tuple(map(tuple, near_HP.tolist())),
    )  # fmt: skip


def sentences(result: WatchResult) -> list[str]:
    """What was found, for people."""
    features, labels = result.features, result.labels
    samples = f"{result.new:,} new samples"
    lines = []
    if not result.alarm:
        lines.append(f"Nothing moved that {samples} show against the site's {result.own:,}.")
    lines.append(
        f"The features {'moved' if features.moved else 'did not move'}: a new sample is farther from the site's "
        f"classes than one of its own in {100 * features.farther:.0f}% of pairs; 50% is no change "
        f"(p = {_p(features.p)})."
    )
    lines.append(
        f"The classes {'no longer occur' if labels.moved else 'occur'} as often as before (p = {_p(labels.p)})."
    )
    if labels.moved and not labels.shares:
        lines.append("How often each occurs cannot be estimated: the site never had the classes that are predicted.")
    elif labels.moved:
        few = sorted(labels.shares.items(), key=lambda pair: -abs(pair[1].now - pair[1].before))[:_SHOWN]
        changes = (
            f"{name} from {100 * s.before:.0f}% to {100 * s.now:.0f}% (95% interval {100 * s.low:.0f}% to "
            f"{100 * s.high:.0f}%)"
            for name, s in few
        )
        only = ", if the features of each class are as before, which they are not" if features.moved else ""
        lines.append(f"Their proportions changed{only}: {', '.join(changes)}.")
    rate = f"Where nothing moves, at most {100 * result.level:g}% of such comparisons raise an alarm."
    return [*lines, rate, *_advice(result)]


def adapt(bundle: Bundle, result: WatchResult, out: Path) -> Bundle:
    """Write a site's model for the new proportions of the classes, without labels and without a round.

    The probabilities are multiplied by new / old proportions. The new ones are the estimate with one more sample of the
    old proportions, so that no class becomes impossible. Sets of classes at a level (``predict``) need labelled samples
    and are not available. The adapted site is watched against the new proportions.

    Args:
        bundle: the site.
        result: of ``watch``.
        out: a new or empty folder.

    Raises:
        InputError: it is not only the classes' proportions that moved, or the folder is not empty.
        RunError: the disk is full.

    Source: Saerens, Latinne & Decaestecker, Adjusting the Outputs of a Classifier to New a Priori Probabilities, Neural
    Computation 2002, Eq. 2.4.
    """
    if not result.adaptable:
        why = " ".join(_advice(result)) or "Nothing moved."
        raise InputError(f"{bundle.folder} is not adapted. {why}")
    files.vacant(out)
    own, site = reference.read(bundle), bundle.about.site
    assert site is not None
    names = [bundle.about.classes[c] for c in own.class_P.tolist()]
    now_P = torch.tensor([result.labels.shares[name].now for name in names], dtype=torch.float64)
    share_P = (result.new * now_P + own.share_P) / (result.new + 1)
    made_P = own.confusion_PP.sum(0)
    shift_P = torch.where(made_P > 0, (share_P / (made_P / made_P.sum())).log(), 0.0)
    shift_C = torch.zeros(len(bundle.about.classes), dtype=torch.float64)
    shift_C[own.class_P] = shift_P
    few = ", ".join(f"{name} {100 * s:.0f}%" for name, s in zip(names, share_P.tolist(), strict=True))
    why = f"{site.why}. Since then the proportions of the classes changed, and its probabilities are for these: {few}"
    changes = {"prior_shift": tuple(shift_C.tolist()), "scores": (), "score_weights": (), "why": why}
    about = bundle.about.model_copy(update={"site": site.model_copy(update=changes)})
    model = bundle.model()
    more = {reference.FILE: reference.content(own._replace(share_P=share_P, near_HP=torch.tensor(result.near)))}
    return write(out, about, model.down.shared, [(model.down.own, model.client)], card.text(about), more=more)


def _features(own: Reference, far: list[Tensor]) -> Features:
    tests = [
        (int((own.half_N == half).sum()), shift.ranks(own.distance_N[own.half_N == half].numpy(), new.numpy()))
        for half, new in enumerate(far)
    ]
    above = sum(n * rank.above for n, rank in tests) / len(own.half_N)
    return Features(min(1.0, 2 * min(rank.p for _, rank in tests)), above, False)


def _labels(own: Reference, near_HP: Tensor, said_P: Tensor, classes: tuple[str, ...]) -> Labels:
    both = zip(own.near_HP.numpy(), near_HP.numpy(), strict=True)
    p = min(1.0, 2 * min(shift.counts_differ(own_P, new_P) for own_P, new_P in both))
    confusion_PP = own.confusion_PP.numpy()
    now_P = shift.proportions(confusion_PP, said_P.numpy()) if int(said_P.sum()) else np.full(len(said_P), math.nan)
    if np.isnan(now_P).any():
        return Labels(p, {}, False)
    ends = shift.interval(confusion_PP, said_P.numpy())
    rows = zip(own.share_P.tolist(), now_P.tolist(), *(end.tolist() for end in ends), strict=True)
    names = [classes[c] for c in own.class_P.tolist()]
    return Labels(p, {name: Share(*row) for name, row in zip(names, rows, strict=True)}, False)


def _advice(result: WatchResult) -> list[str]:
    if not result.alarm:
        return []
    if result.features.moved:
        return ["The site's model needs labels of new samples: give some to idiolect join."]
    if not result.adaptable:
        return ["The new proportions need labels of new samples: give some to idiolect join."]
    return ["Its probabilities can be made to fit the new proportions without labels: idiolect watch --adapt."]


def _p(p: float) -> str:
    return f"{p:.4f}" if p >= 0.0001 else "below 0.0001"
