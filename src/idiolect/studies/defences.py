"""A study's privacy, robust rule and attacks: completed, and checked against its methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from idiolect.core.errors import InputError, argument, blame
from idiolect.core.evaluation_protocol import Protocol
from idiolect.core.method import Method
from idiolect.core.option_spec import Spec, complete
from idiolect.core.reduce import needs_each
from idiolect.core.reduction import Reduction
from idiolect.simulation import Job, reception
from idiolect.simulation.attacks import complete_attack
from idiolect.simulation.privacy import mechanism_of
from idiolect.simulation.robust import rule_of
from idiolect.simulation.sampling import share_of
from idiolect.simulation.uploads import step_of
from idiolect.studies.method_use import Use
from idiolect.studies.naming import complete_shift
from idiolect.training import trial

COMPLETE: dict[str, Callable[[Spec], Spec]] = {
    "shifts": complete_shift,
    "new_shifts": complete_shift,
    "uploads": partial(complete, build=step_of),
    "privacy": partial(complete, build=mechanism_of),
    "robust": partial(complete, build=rule_of),
    "attacks": complete_attack,
}
"""For each setting of specs, what adds the options that a spec leaves out."""


def check_defences(jobs: Sequence[tuple[Use, Job]], protocol: Protocol, participation: float) -> None:
    """Check that methods and protocol can take the study's privacy, robust rule, uploads or secure aggregation.

    Raises:
        InputError: one cannot.
    """
    for _, job in jobs:
        if not (job.secure or job.privacy or job.robust or job.uploads):
            continue
        reception.check_sums(job, protocol, share_of(job.data.trained, participation))
        method = job.build()
        reception.check(job, method)
        if job.secure and needs_each(method.reduce):
            what = argument("secure_aggregation")
            raise InputError(
                f"method {job.name} cannot take {what}, because its server needs the upload of each client, not only "
                f"their sum: leave out {what}, or this method"
            )
        if job.privacy is not None and not _counts_clients(method, job):
            raise InputError(
                f"method {job.name} cannot take privacy, because its server weighs uploads by the clients' classes, "
                "which noise on the values does not hide: leave out privacy, or this method"
            )


def _counts_clients(method: Method, job: Job) -> bool:
    """Whether every weight of an upload is one number for each client."""
    data = job.data
    with blame(f"{job.name}, on synthetic samples"):
        [up] = trial.trial(
            method, trial.samples(data.inputs, data.outputs, 2, images=data.has_images, task=data.task)
        ).ups
        return Reduction(method.reduce, up).counts_clients
