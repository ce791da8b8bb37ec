"""What must hold before a search begins: the tuned study can run, and its trials can be compared at every rung."""

from __future__ import annotations

from collections.abc import Sequence

from idiolect.core.errors import InputError, argument, blame, option
from idiolect.data import FederatedData
from idiolect.simulation import Job
from idiolect.simulation.attacks import attackers
from idiolect.simulation.sampling import participants
from idiolect.studies import Study, Use


def check(study: Study, of_trials: Study, federation: FederatedData, ends: Sequence[int]) -> None:
    """Check what a run of the study checks at its start, and that each rung has a client to compare trials by.

    Args:
        study: what is tuned.
        of_trials: the study as trials run it.
        federation: its clients.
        ends: the rounds of the rungs.

    Raises:
        InputError: the data do not allow a measure or the threshold, a method cannot take the privacy, the robust
            rule, secure aggregation or steps that change uploads, or at a rung no client is measured that counts.
        CodeError: the code of a method failed.
    """
    uses = tuple(use for use in of_trials.methods if _builds(use, of_trials.job(use, of_trials.seeds[0], federation)))
    of_study = {"measures": study.measures, "protocol": study.protocol, "methods": uses}
    of_trials.model_copy(update=of_study).jobs(federation)
    _check_rungs(of_trials, federation, ends)


def _builds(use: Use, job: Job) -> bool:
    """Whether a method takes the study's own values; if it does not, it may take those of trials."""
    try:
        with blame(f"method {use.name}"):
            job.build()
    except InputError:
        return False
    return True


def _check_rungs(study: Study, federation: FederatedData, ends: Sequence[int]) -> None:
    having = {client for client, row_N in enumerate(federation.validation) if len(row_N)}
    counted = having - set(attackers(study.attacks, federation.trained))
    if not counted:
        raise InputError(
            "trials cannot be compared, because each client attacks or has no validation samples: give clients more "
            "samples, or leave out an attack"
        )
    if study.protocol.clients != "participants":
        return
    is_last = study.protocol.round == "last"
    for end in ends:
        rounds = {end} if is_last else {*range(study.evaluation, end, study.evaluation), end}
        if not any(counted & _participants(study, federation.trained, number) for number in rounds):
            raise InputError(
                f"trials cannot be compared after round {end}, because each participant of "
                f"{'it' if is_last else 'the rounds that are measured until then'} attacks or has no validation "
                f"samples: give {option('protocol', 'clients=all')}, raise {argument('participation')}, or choose "
                f"another {argument('seed')}"
            )


def _participants(study: Study, clients: int, number: int) -> set[int]:
    """The clients that are measured after a round; a method that asks for all of them in this round has more."""
    share = study.protocol.share(number, study.rounds, study.participation)
    drawn = participants(study.seeds[0], number, clients, share, study.privacy is not None)
    return set(drawn or [0])  # where privacy draws nobody, the first client does the work and is measured
