"""What must hold before a search begins: the tuned study can run."""

from __future__ import annotations

from idiolect.core.errors import InputError, blame
from idiolect.data import FederatedData
from idiolect.simulation import Job, reception
from idiolect.simulation.rounds import share_of
from idiolect.studies import Study, Use


def check(study: Study, of_trials: Study, federation: FederatedData) -> None:
    """Check what a run of the study checks at its start.

    Args:
        study: what is tuned.
        of_trials: the study as trials run it.
        federation: its clients.

    Raises:
        InputError: the data do not allow a measure or the threshold, or a method cannot take the privacy, the robust
            rule or secure aggregation.
        CodeError: the code of a method failed.
    """
    uses = tuple(use for use in of_trials.methods if _builds(use, of_trials.job(use, of_trials.seeds[0], federation)))
    jobs = of_trials.model_copy(update={"measures": study.measures, "methods": uses}).jobs(federation)
    for _, job in jobs:
        reception.check_sums(job, study.protocol, share_of(federation.trained, study.participation))


def _builds(use: Use, job: Job) -> bool:
    """Whether a method takes the study's own values; if it does not, it may take those of trials."""
    try:
        with blame(f"method {use.name}"):
            job.build()
    except InputError:
        return False
    return True
