"""How often clients train only to be measured: told before a study starts, because this can be most of its time."""

from __future__ import annotations

from collections.abc import Mapping

from idiolect import methods
from idiolect.core.errors import option
from idiolect.methods import profile
from idiolect.simulation.rounds import participants, share_of
from idiolect.studies.config import Study

_MANY = 1_000  # fewer trainings are not mentioned


def trainings(study: Study, clients: int, done: Mapping[tuple[str, int], int]) -> str | None:
    """A sentence if evaluations train clients 1,000 times or more, and more often than the rounds do.

    Args:
        study: the study to run.
        clients: how many train.
        done: rounds on disk by method's label and seed; without the cells that are not run.
    """
    if study.protocol.clients != "all" or "personalised" not in study.protocol.stages:
        return None
    counts = {(seed, n): _counts(study, clients, seed, n) for seed, n in {(s, n) for (_, s), n in done.items()}}
    if not any(measured > max(_MANY - 1, trained) for trained, _, measured in counts.values()):
        return None  # this does not depend on the methods
    named, in_all, in_rounds, always = [], 0, 0, False
    for use in study.methods:
        mine = [counts[seed, n] for (label, seed), n in done.items() if label == use.label]
        fresh, every = profile.adapts_by_training(use.name, use.options)
        evaluating = sum(measured if every else new if fresh else 0 for _, new, measured in mine)
        training = sum(trained for trained, _, _ in mine)
        if evaluating > training:
            named.append(methods.get(use.name).title)
            in_all, in_rounds, always = in_all + evaluating, in_rounds + training, always or every
    if in_all < _MANY:
        return None
    whom = "every client that is measured" if always else "a client that has not taken part yet, to measure it"
    titles = list(dict.fromkeys(named))
    who = ", ".join(titles[:-1]) + " and " * (len(titles) > 1) + titles[-1]
    return (
        f"{who} train{'s' * (len(titles) == 1)} {whom}: {in_all:,} times in the evaluations, {in_rounds:,} times in "
        f"the rounds. To measure only the participants of a round: {option('protocol', 'clients=participants')}; to "
        f"measure less often: {option('evaluate_every')}"
    )


def _counts(study: Study, clients: int, seed: int, done: int) -> tuple[int, int, int]:
    """Sums over the remaining rounds: participants; clients measured before they first took part; clients measured."""
    left = range(done + 1, study.rounds + 1)
    few = share_of(clients, study.participation)
    trained = few * len(left)
    if left and study.protocol.full_last_round:
        trained += clients - few
    evaluations = {n for n in left if n % study.evaluation == 0 or n == study.rounds}
    seen: set[int] = set()
    fresh = 0
    for number in range(1, study.rounds + 1):
        everybody = study.protocol.full_last_round and number == study.rounds
        share = 1.0 if everybody else study.participation
        seen.update(participants(seed, number, clients, share, study.privacy is not None))
        if len(seen) == clients:  # no need to count the later rounds, which may be many
            break
        fresh += (clients - len(seen)) * (number in evaluations)
    return trained, fresh, clients * len(evaluations)
