"""A study's privacy, robust rule and attacks: completed, and checked against its methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from idiolect.core.errors import InputError, option
from idiolect.core.method import Up
from idiolect.core.option_spec import Spec
from idiolect.methods import profile
from idiolect.simulation import Job, reception, summing
from idiolect.simulation.attacks import complete_attack
from idiolect.simulation.privacy import Gaussian, complete_mechanism, mechanism_of
from idiolect.simulation.robust import Rule, complete_rule, rule_of
from idiolect.simulation.uploads import complete_step
from idiolect.studies.method_use import Use
from idiolect.studies.naming import complete_shift
from idiolect.training.server_optimisers import complete_server_optimiser

COMPLETE: dict[str, Callable[[Spec], Spec]] = {
    "shifts": complete_shift,
    "new_shifts": complete_shift,
    "server_optimiser": complete_server_optimiser,
    "uploads": complete_step,
    "privacy": complete_mechanism,
    "robust": complete_rule,
    "attacks": complete_attack,
}
"""For each setting of specs, what adds the options that a spec leaves out."""


def rule_or_none(spec: Spec | None) -> Rule | None:
    """The robust rule of a study, if it has one."""
    return None if spec is None else rule_of(spec)


def mechanism_or_none(spec: Spec | None) -> Gaussian | None:
    """The privacy of a study, if it asks for some."""
    return None if spec is None else mechanism_of(spec)


def check_defences(jobs: Sequence[tuple[Use, Job]]) -> None:
    """Check that the methods can take the study's privacy, robust rule or secure aggregation.

    Raises:
        InputError: one cannot.
    """
    for use, job in jobs:
        if job.secure:
            small = profile.small_round(use.name, use.options)
            try:
                summing.weighting(small.method, Up(small.value, small.weight))
            except InputError as error:
                what = option("secure_aggregation")
                raise InputError(
                    f"method {job.name} cannot take {what}, because {error}: leave out {what}, or this method"
                ) from None
        if job.privacy is None and job.robust is None:
            continue
        reception.check(job, job.build())
        if job.privacy is not None and profile.weighs_by_class(use.name, use.options):
            raise InputError(
                f"method {job.name} cannot take privacy, because its server weighs uploads by the clients' classes, "
                "which noise on the values does not hide: leave out privacy, or this method"
            )
