"""What a study costs: how often clients train and are measured, and how long that takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from idiolect import methods
from idiolect.core.errors import option
from idiolect.methods import profile
from idiolect.simulation.sampling import participants, share_of
from idiolect.studies.config import Study

_MANY = 1_000  # fewer trainings are not mentioned


class Turns(NamedTuple):
    """How often clients are at work in the rounds of a method and a seed that are not done."""

    training: int
    """Times that clients train in these rounds."""
    evaluations: int
    """How many of these rounds are evaluated."""
    per_evaluation: int
    """Clients that are measured in each of them, at each stage."""


def turns(study: Study, clients: int, done: int = 0) -> Turns:
    """How often clients are at work after ``done`` rounds, of ``clients`` that train."""
    left = study.rounds - done
    few = share_of(clients, study.participation)
    last = (clients - few) * study.protocol.full_last_round * (left > 0)
    per_evaluation = few if study.protocol.clients == "participants" else clients
    return Turns(few * left + last, len(_evaluation_rounds(study, done)), per_evaluation)


def _evaluation_rounds(study: Study, done: int) -> set[int]:
    """The rounds after ``done`` in which clients are measured."""
    return {n for n in range(done + 1, study.rounds + 1) if n % study.evaluation == 0 or n == study.rounds}


def pace(seconds: Sequence[float]) -> float:
    """Seconds of a round, from those of some rounds: their mean without the first, in which workers start.

    >>> pace([9.0]), pace([9.0, 2.0, 4.0])
    (9.0, 3.0)
    """
    usual = seconds[1:] or seconds
    return sum(usual) / len(usual)


def seconds_of_all(each: Sequence[float], lanes: int) -> float:
    """Seconds until all of some jobs have ended, of which as many as there are ``lanes`` run side by side.

    >>> seconds_of_all([6.0, 2.0, 2.0], 2), seconds_of_all([6.0, 6.0, 6.0], 2)
    (6.0, 9.0)
    """
    return max(max(each), sum(each) / min(lanes, len(each)))


def evaluation_warning(study: Study, clients: int, done: Mapping[tuple[str, int], int]) -> str | None:
    """A sentence if evaluations train clients 1,000 times or more, and more often than the rounds do.

    Args:
        study: the study to run.
        clients: how many train.
        done: rounds on disk by method's label and seed; without the cells that are not run.
    """
    if study.protocol.clients != "all" or "personalised" not in study.protocol.stages:
        return None
    work = {n: turns(study, clients, n) for n in done.values()}
    if not any(w.per_evaluation * w.evaluations > max(_MANY - 1, w.training) for w in work.values()):
        return None  # this does not depend on the methods
    fresh = {(seed, n): _fresh(study, clients, seed, n) for seed, n in {(s, n) for (_, s), n in done.items()}}
    methods_of, in_all, in_rounds, always = [], 0, 0, False
    for use in study.methods:
        mine = [(seed, n) for (label, seed), n in done.items() if label == use.label]
        at_first, every = profile.adapts_by_training(use.name, use.options)
        at_first = at_first or study.of(use).personal is not None
        counts = [
            work[n].per_evaluation * work[n].evaluations if every else fresh[seed, n] if at_first else 0
            for seed, n in mine
        ]
        evaluating, training = sum(counts), sum(work[n].training for _, n in mine)
        if evaluating > training:
            methods_of.append(methods.get(use.name).title)
            in_all, in_rounds, always = in_all + evaluating, in_rounds + training, always or every
    if in_all < _MANY:
        return None
    whom = "every client that is measured" if always else "a client that has not taken part yet, to measure it"
    titles = list(dict.fromkeys(methods_of))
    who = ", ".join(titles[:-1]) + " and " * (len(titles) > 1) + titles[-1]
    return (
        f"{who} train{'s' * (len(titles) == 1)} {whom}: {in_all:,} times in the evaluations, {in_rounds:,} times in "
        f"the rounds. To measure only the participants of a round: {option('protocol', 'clients=participants')}; to "
        f"measure less often: {option('evaluate_every')}"
    )


def _fresh(study: Study, clients: int, seed: int, done: int) -> int:
    """How often clients are measured that have not taken part yet, summed over the rounds after ``done``."""
    evaluations, veterans, count = _evaluation_rounds(study, done), set[int](), 0
    for number in range(1, study.rounds + 1):
        share = study.protocol.share(number, study.rounds, study.participation)
        veterans.update(participants(seed, number, clients, share, study.privacy is not None))
        if len(veterans) == clients:  # no need to count the later rounds, which may be many
            break
        count += (clients - len(veterans)) * (number in evaluations)
    return count
