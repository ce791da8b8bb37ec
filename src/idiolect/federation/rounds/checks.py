"""Checks of what a site sends, before it counts: its form, its numbers and its size beside the others'."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import torch

from idiolect.core import tree
from idiolect.core.errors import InputError, blame
from idiolect.core.method import Method, Up
from idiolect.data import FederatedData
from idiolect.federation.data.agreement import Sums
from idiolect.federation.messages import Message, Refusal, trees_of
from idiolect.simulation.client_runner import EvaluationResult, LocalResult
from idiolect.training import trial

_MOST = 1000  # values that a client may report
_SAMPLES, _OF_ALL = 2**26, 2**28  # of a site and of all sites: the server keeps a few whole numbers for each
_FEW = 3  # uploads of which a median says something


class Form(NamedTuple):
    """What a method sends after a round's training."""

    up: Up
    """An upload of the right form."""
    info: frozenset[str]
    """The names of what it reports."""


def form_of(method: Method, data: FederatedData, name: str) -> Form:
    """The form of what a method sends here, from a round on a few synthetic samples.

    Raises:
        RunError: the method raised.
    """
    with blame(f"{name}, on synthetic samples"):
        rows = 2 * max(data.outputs, 2)
        samples = trial.samples(data.inputs, data.outputs, rows, images=data.has_images, task=data.task)
        one = trial.trial(method, samples)
        return Form(one.ups[0], frozenset(one.infos[0]))


def all_are_asked(name: str, method: Method, participation: float) -> None:
    """Check that a method whose clients act in rounds that they are not drawn for meets them in every round.

    Raises:
        InputError: it does not.
    """
    if method.stand_by is not None and participation < 1:
        raise InputError(
            f"method {name} cannot run at sites with participation {participation:g}, because its clients act in "
            "rounds that they are not drawn for, and only sites that are drawn are asked: write participation: 1, or "
            "leave out this method"
        )


def local_result(
    message: Message, form: Form, round: int, samples: int, labels: int = 1, measured: Collection[int] = ()
) -> LocalResult:
    """What a site trained, as the round loop takes it: in place of its state the round, because the state stays there.

    Args:
        message: the site's.
        form: of what the method sends.
        round: the round.
        samples: training samples that the site has said it has; a weight counts some of them, or is at most 1.
        labels: of which a sample can have several; a weight may count a sample once for each.
        measured: the places of the weights that count no samples (``Reduction.measured``).

    Raises:
        Refusal: an array is missing, strange, of another shape or type, or not finite, a weight is negative or counts
            more samples than there are, or what it reports is not in order.
    """
    up = Up(**trees_of(message.arrays, form.up._asdict()))
    if (path := tree.not_finite(up)) is not None:
        raise Refusal(f"{path} is not finite")
    if any(a.numel() and bool((a < 0).any()) for a in tree.leaves(up.weight)):
        raise Refusal("a weight is negative")
    counts = [float(a.double().sum()) for k, a in enumerate(tree.leaves(up.weight)) if k not in measured]
    most = max(counts, default=0.0)
    if most > max(samples, 1) * labels * 1.001:
        raise Refusal(f"its weight is {most:.6g}, and it has {samples} training samples")
    info = {name: torch.tensor(value) for name, value in report_of(message, form.info).items()}
    return LocalResult(torch.tensor(round), up, info)


def sums_of(message: Message, like: Sums, others: int = 0) -> Sums:
    """What a site says of its samples once features and classes are agreed.

    Args:
        message: the site's.
        like: sums of the right form.
        others: how many samples the other sites have said that they have.

    Raises:
        Refusal: an array has another shape or type, a number is not possible, or there are too many samples.
    """
    result = Sums(**trees_of(message.arrays, {"sums": like._asdict()})["sums"])
    never_negative = tree.leaves((*result[:4], result.square_F, result.target_square_D))
    if tree.not_finite(result) is not None or any(bool((a < 0).any()) for a in never_negative):
        raise Refusal("a sum over its samples is not finite, or a number of samples is negative")
    train, test, validation = (float(a.double().sum()) for a in result[:3])
    if not (train >= 1 and train + test + validation <= _SAMPLES):
        more = f", and {validation:.6g} for validation" if validation else ""
        raise Refusal(f"it says that it has {train:.6g} training and {test:.6g} test samples{more}")
    if (count := others + result.samples) > _OF_ALL:
        raise Refusal(f"with it there would be {count:,} samples, and a run has room for {_OF_ALL:,} of all sites")
    return result


def report_of(message: Message, names: Collection[str]) -> dict[str, float]:
    """What a client reports of its training, by metric; ``names`` are those that its method reports.

    Raises:
        Refusal: it is not in order.
    """
    info = numbers(message.about.get("info"), "info")
    if strange := sorted(info.keys() - set(names)):
        raise Refusal(f"info {strange[0][:40]!r} is no number that its method reports")
    return info


def numbers(values: Any, what: str, *, gaps: bool = False) -> dict[str, float]:
    """A table of numbers that a site has sent; with ``gaps`` one may be missing, which is NaN.

    Raises:
        Refusal: it is something else.
    """
    if not isinstance(values, dict) or len(values) > _MOST:
        raise Refusal(f"{what} is not a table of numbers")
    result = {}
    for name, value in values.items():
        if gaps and value is None:
            value = math.nan
        elif (number := finite(value)) is None:
            raise Refusal(f"{what} {name[:40]} is not a finite number")
        else:
            value = number
        result[name] = value
    return result


def finite(value: Any) -> float | None:
    """A number that a site has sent; None if it is not a finite one."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # Python's whole numbers have no limit
        return None


def norm(up: Up) -> float:
    """The Euclidean norm of an upload's value, over all of its numbers together."""
    return math.sqrt(sum(float(a.double().square().sum()) for a in tree.leaves(up.value) if a.is_floating_point()))


def too_large(sizes: Mapping[int, float], most: float) -> dict[int, float]:
    """The clients whose upload is larger than ``most`` times the median, with that ratio; of two uploads, none."""
    if len(sizes) < _FEW:
        return {}
    median = statistics.median(sizes.values())
    return {i: size / median for i, size in sizes.items() if size > most * median > 0}


def as_message(result: EvaluationResult) -> dict[str, Any]:
    """Numbers only: what a model predicts for a sample stays here."""

    def number(value: Any) -> float | None:
        return value if isinstance(value, float) and math.isfinite(value) else None

    values = {name: number(value) for name, value in result._asdict().items() if isinstance(value, float)}
    return values | {"measures": {name: number(value) for name, value in (result.measures or {}).items()}}
