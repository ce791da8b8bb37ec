"""Watching: has the world moved since the site joined? At a stated rate of false alarms, without labels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from idiolect.core import files
from idiolect.core.errors import InputError
from idiolect.core.objectives import number
from idiolect.deploy import card, numbers, reference
from idiolect.deploy import labels as labels_of
from idiolect.deploy.bundle import Bundle, log_probabilities, write
from idiolect.deploy.global_model import receives
from idiolect.deploy.on_features import some_features
from idiolect.deploy.reference import Reference
from idiolect.deploy.schema import About
from idiolect.engines.threads import OneThread
from idiolect.statistics import conformal, shift

# M new samples, P classes at the site, R named classes: these and the others together, D numbers of a target

LEAST = 10
"""New samples that are needed."""
_SHOWN = 5  # classes whose proportions a sentence gives


class Features(NamedTuple):
    """Whether new samples look like the site's own."""

    p: float
    farther: float
    """The share of pairs in which a new sample is farther from the site's classes than an own one; 0.5: no change. Of
    numbers, all samples are of one class."""
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


class Means(NamedTuple):
    """Whether numbers of the samples, one for each of the target, are others than before."""

    p: float
    before: dict[str, float]
    """The mean at the site, in the units of the data."""
    now: dict[str, float]
    """The mean of the new samples."""
    moved: bool


class WatchResult(NamedTuple):
    """What the comparison of new samples with a site's own found."""

    level: float
    """At most this share of comparisons raises the alarm where nothing has moved."""
    own: int
    """Samples that the site was made from."""
    new: int
    features: Features
    labels: Labels | None
    """None of numbers."""
    near: tuple[tuple[int, ...], ...]
    """For each half, how many new samples were nearest to each class."""
    predictions: Means | None = None
    """Of numbers, what the global model predicts."""
    errors: Means | None = None
    """Of numbers, the absolute errors of the site's model, where the new samples have targets."""
    intervals: dict[str, conformal.Quality] | None = None
    """Of numbers with targets, how good the site's intervals at 90 % are for the new samples, by number."""
    network: str = "global model"
    """What makes the representation, and the predictions that are tested."""

    @property
    def tests(self) -> list[Features | Labels | Means]:
        """What was tested."""
        parts = (self.features, self.labels, self.predictions, self.errors)
        return [part for part in parts if part is not None]

    @property
    def alarm(self) -> bool:
        """Whether something moved."""
        return any(test.moved for test in self.tests)

    @property
    def adaptable(self) -> bool:
        """Whether only the classes' proportions moved, and the new ones are known."""
        if self.labels is None:
            return False
        return self.labels.moved and not self.features.moved and bool(self.labels.shares)

    def as_json(self) -> dict[str, Any]:
        """Everything, for JSON."""
        parts: dict[str, Any] = {"features": self.features._asdict()}
        if self.labels is not None:
            shares = {name: share._asdict() for name, share in self.labels.shares.items()}
            parts["labels"] = self.labels._asdict() | {"shares": shares}
        parts |= {name: part._asdict() for name in ("predictions", "errors") if (part := getattr(self, name))}
        if self.intervals is not None:
            parts["intervals"] = {name: quality._asdict() for name, quality in self.intervals.items()}
        plain = {name: getattr(self, name) for name in ("level", "own", "new", "near")}
        return {**plain, **parts, "alarm": self.alarm, "sentences": sentences(self)}


def watch(
    bundle: Bundle, x_M: Tensor | Iterable[Tensor], *, y_MD: Tensor | None = None, level: float = 0.05
) -> WatchResult:
    """Compare new samples with those that a site was made from.

    Two tests. Features: distances to the nearest class Gaussian, in the representation of the global model (of a method
    without one, of the network that is received, or else of the initial one), of new samples and of the site's own, by
    a rank test. Labels: how often each class is the nearest one, by an exact test of counts. Each half of the own
    samples is compared by Gaussians of the other half, and the smaller p counts twice. So the level of both holds for
    every distribution. The new proportions are estimated from what the site's model names.

    Where numbers or labels are predicted, features are tested as those of one class, and in place of classes what the
    global model predicts: by the Kolmogorov-Smirnov test, the smallest p of the numbers times their count. With targets
    a third test compares absolute errors, by ranks: whether the new ones of the site's model are larger than those of
    its own samples, which were predicted by models made without them. Of a label, a prediction is its
    probability, and an error how far this is from 1 where a sample has it, else from 0.

    The alarm is Holm's of all tests. Samples must be independent of each other.

    Args:
        bundle: that ``join`` wrote.
        x_M: new samples as stored, all at once or some at a time; without labels.
        y_MD: of numbers or labels, what networks learn of the targets, if they are known.
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
    new_outputs, site_outputs = list[Tensor](), list[Tensor]()  # of numbers: of the global and the site's model
    far: list[list[Tensor]] = [[], []]
    gaussians = [reference.gaussian(own, half) for half in range(2)]
    near_HP = torch.zeros_like(own.near_HP)
    said_C = torch.zeros(classes, dtype=torch.int64)
    with OneThread():
        for x_B in [x_M] if isinstance(x_M, Tensor | dict) else x_M:
            seen_B = some_features(bundle, x_B) if frozen else x_B  # once for the two lines that follow
            (z_Bd, global_BC), output_BC = (
                reference.features(seen, seen_B),
                log_probabilities(model, seen.unshifted, seen_B),
            )
            for half, distances in enumerate(far):
                far_B, near_B = reference.nearest(z_Bd, gaussians[half], own.count_HP[half])
                distances.append(far_B)
                near_HP[half] += torch.bincount(near_B, minlength=len(near_HP[half]))
            if classes:
                said_C += torch.bincount(output_BC.argmax(1), minlength=classes)
            else:
                is_number = bool(bundle.about.targets)
                new_outputs.append(global_BC if is_number else labels_of.probabilities(global_BC))
                site_outputs.append(output_BC.double() if is_number else labels_of.probabilities(output_BC))
    if (count := int(near_HP[0].sum())) < LEAST:
        raise InputError(f"{count} new samples are too few to tell whether something moved: give {LEAST} or more")
    features = _features(own, [torch.cat(distances) for distances in far])
    result = WatchResult(level, len(own.half_N), count, features, None, tuple(map(tuple, near_HP.tolist())))
    if not bundle.has_global:
        result = result._replace(network="received network" if receives(seen) else "initial network")
    if classes:
        labels = _labels(own, near_HP, said_C[own.class_P], bundle.about.classes)
        return _judged(result._replace(labels=labels))
    result = result._replace(predictions=_predictions(bundle.about, own, torch.cat(new_outputs)))
    if y_MD is not None:
        error_MD = torch.cat(site_outputs) - y_MD
        if bundle.about.targets:
            error_MD = error_MD * numbers.moments(bundle.about.targets)[1]
            result = result._replace(intervals=_intervals(bundle.about, error_MD.numpy()))
        result = result._replace(errors=_errors(bundle.about, error_MD.numpy()))
    return _judged(result)


def _judged(result: WatchResult) -> WatchResult:
    """What of it is an alarm, by Holm's rule."""
    p_T = sorted(test.p for test in result.tests)
    enough = [p <= result.level / (len(p_T) - k) for k, p in enumerate(p_T)]
    least = p_T[: enough.index(False) if False in enough else len(p_T)]

    def judged(test: Any) -> Any:
        return test and test._replace(moved=test.p in least)

    names = ("features", "labels", "predictions", "errors")
    return result._replace(**{name: judged(getattr(result, name)) for name in names})


def _predictions(about: About, own: Reference, value_MD: Tensor) -> Means:
    assert own.value_ND is not None
    pairs = list(zip(own.value_ND.T.numpy(), value_MD.T.numpy(), strict=True))
    p = min(1.0, len(pairs) * min(shift.distributions_differ(*pair) for pair in pairs))
    both = (own.value_ND, value_MD)
    if about.targets:
        both = (numbers.unscaled(own.value_ND, about.targets), numbers.unscaled(value_MD, about.targets))
    (before_D, now_D), names = (part.mean(0).tolist() for part in both), _names(about)
    return Means(p, dict(zip(names, before_D, strict=True)), dict(zip(names, now_D, strict=True)), False)


def _errors(about: About, error_MD: NDArray[np.float64]) -> Means:
    assert about.site is not None
    size_MD = np.abs(error_MD)
    own = [np.array(part.sizes) for part in about.site.errors]
    tests = [shift.ranks(own_N, new_M, larger=True) for own_N, new_M in zip(own, size_MD.T, strict=True)]
    names = _names(about)
    before = {name: float(own_N.mean()) for name, own_N in zip(names, own, strict=True)}
    now = dict(zip(names, size_MD.mean(0).tolist(), strict=True))
    return Means(min(1.0, len(tests) * min(test.p for test in tests)), before, now, False)


def _names(about: About) -> Sequence[str]:
    """Of the numbers, or the labels."""
    return [target.name for target in about.targets] or about.labels


def _intervals(about: About, error_MD: NDArray[np.float64]) -> dict[str, conformal.Quality]:
    """By number; without those whose intervals are infinite, because the site had too few samples."""
    assert about.site is not None
    each = {}
    for target, part, error_M in zip(about.targets, about.site.errors, error_MD.T, strict=True):
        half = conformal.quantile(part.sizes, conformal.LEVEL, part.weights)
        if math.isfinite(half):
            each[target.name] = conformal.quality(error_M, half, np.zeros(len(error_M)), conformal.LEVEL)
    return each


def sentences(result: WatchResult) -> list[str]:
    """What was found, for people."""
    features, labels = result.features, result.labels
    middle = "classes" if labels else "middle"
    samples = f"{result.new:,} new samples"
    lines = []
    if not result.alarm:
        lines.append(f"Nothing moved that {samples} show against the site's {result.own:,}.")
    lines.append(
        f"The features {'moved' if features.moved else 'did not move'}: a new sample is farther from the site's "
        f"{middle} than one of its own in {100 * features.farther:.0f}% of pairs; 50% is no change "
        f"(p = {_p(features.p)})."
    )
    if labels is not None:
        lines += _of_labels(labels, features)
    if (means := result.predictions) is not None:
        how = "moved" if means.moved else "did not move"
        lines.append(
            f"The predictions of the {result.network} {how} (p = {_p(means.p)}): {_before_and_now('mean', means)}."
        )
    if (means := result.errors) is not None:
        how = "are larger than before" if means.moved else "are not larger than before"
        what = _before_and_now("mean absolute error", means)
        lines.append(f"The errors of the site's model {how} (p = {_p(means.p)}): {what}.")
    for name, quality in list((result.intervals or {}).items())[:_SHOWN]:
        of = f" of {name}" if means and len(means.before) > 1 else ""
        lines.append(
            f"Intervals at {100 * conformal.LEVEL:g}% hold {100 * quality.coverage:.0f}% of the new numbers{of} (width "
            f"{number(quality.width)}, interval score {number(quality.score)})."
        )
    rate = f"Where nothing moves, at most {100 * result.level:g}% of such comparisons raise an alarm"
    many = len(result.tests)
    rate += f": the smallest p must be at most {result.level / many:g}, because there are {many}." if many > 1 else "."
    return [*lines, rate, *_advice(result)]


def _before_and_now(what: str, means: Means) -> str:
    few = list(means.before.items())[:_SHOWN]
    names = [f" of {name}" if len(means.before) > 1 else "" for name, _ in few]
    pairs = zip(names, few, strict=True)
    return ", ".join(f"{what}{of} {number(before)} before, {number(means.now[n])} now" for of, (n, before) in pairs)


def _of_labels(labels: Labels, features: Features) -> list[str]:
    """Sentences about the proportions of the classes."""
    how = "do not occur as often as before" if labels.moved else "do not seem to occur more or less often"
    lines = [f"The classes {how} (p = {_p(labels.p)})."]
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
    return lines


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
    if not result.adaptable or result.labels is None:
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
    changed = {"site": site.model_copy(update=changes), "thresholds": ()}  # which were chosen for the old proportions
    about = bundle.about.model_copy(update=changed)
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
    if result.predictions is not None:
        if result.errors is not None and result.errors.moved:
            return ["The site's model predicts worse than it did: join again with new samples."]
        if result.errors is not None:
            return ["The site's model predicts as well as before."]
        return ["Whether the site's model still predicts well, samples with targets say: idiolect watch --target."]
    if result.features.moved:
        return ["The site's model needs labels of new samples: give some to idiolect join."]
    if not result.adaptable:
        return ["The new proportions need labels of new samples: give some to idiolect join."]
    return ["Its probabilities can be made to fit the new proportions without labels: idiolect watch --adapt."]


def _p(p: float) -> str:
    return f"{p:.4f}" if p >= 0.0001 else "below 0.0001"
