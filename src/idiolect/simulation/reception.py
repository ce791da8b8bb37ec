"""What the server does with uploads between the wire and its method: refuses, bounds, combines robustly, adds noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from idiolect.core import keys, tree
from idiolect.core.errors import Diverged, InputError, option
from idiolect.core.evaluation_protocol import Protocol
from idiolect.core.method import Method, Up
from idiolect.simulation import uploads
from idiolect.simulation.client_runner import Job
from idiolect.simulation.privacy import Ledger, accounting
from idiolect.simulation.summing import LEAST

# m participants


class Note(NamedTuple):
    """What was done to an upload: ``refused`` (1), or ``scaled`` (the factor, below 1)."""

    client: int
    metric: str
    value: float


def check(job: Job, method: Method) -> None:
    """Check, before anything is trained, that the job's robust rule and its privacy are possible for the method.

    Raises:
        InputError: the method's server needs each upload, delta is too large, or a package is missing.
    """
    if job.privacy is None and job.robust is None:
        return
    if job.privacy is not None and job.robust is not None:
        raise InputError(
            f"{option('privacy')} and {option('robust')} do not go together: what one client can change in a robust "
            "estimate is not bounded by its own norm; leave one of them out (privacy bounds norms too)"
        )
    if job.privacy is not None:
        accounting()
        if job.privacy.delta * job.data.trained >= 1:
            raise InputError(
                f"privacy: delta={job.privacy.delta:g} allows to publish one of {job.data.trained} clients as it is: "
                f"take less than {1 / job.data.trained:.2g}"
            )
    if method.combine is None and tree.leaves(method.init_server(keys.key(0))):
        if job.privacy is not None:
            raise InputError(
                f"method {job.name} cannot take privacy, because its server needs the upload of each client, not only "
                "their sum: leave out privacy, or this method"
            )
        if job.robust is not None and job.robust.needs_sums:
            raise InputError(
                f"method {job.name} cannot take this robust rule, because its server needs the upload of each client: "
                "choose norm_bound, or leave out this method"
            )


def check_sums(job: Job, protocol: Protocol, participants: int) -> None:
    """Check, before anything is trained, that a job whose server gets sums alone can be run and measured like this.

    Raises:
        InputError: a round has too few participants, or something needs the upload of each.
    """
    if not job.secure:
        return
    what = option("secure_aggregation")
    if job.privacy is not None or job.robust is not None:
        other = option("robust" if job.privacy is None else "privacy")
        raise InputError(
            f"{what} and {other} do not go together: {other} acts on the upload of each client, which nobody sees "
            f"then; leave one of them out (clients can clip their own uploads: {option('upload', 'clip:norm=1.0')})"
        )
    if "trained" in protocol.stages:
        raise InputError(
            f"{what}: the stage trained needs the upload of each client: leave it out of {option('protocol')}"
        )
    if participants < LEAST:
        raise InputError(
            f"{what}: a round has {participants} of {job.data.trained} clients, and a sum over fewer than {LEAST} "
            f"hides nobody: raise {option('participation')}, or leave out {what}"
        )


def nbytes(job: Job, up: Up) -> int:
    """The bytes of an upload on the wire; what is masked cannot be compressed."""
    return tree.nbytes(up) if job.secure else uploads.nbytes(job.uploads, up)


def received(job: Job, number: int, ids: Sequence[int], ups: Sequence[Up]) -> tuple[list[int], list[Up], list[Note]]:
    """The clients whose uploads count, these uploads, and what was refused.

    With a robust rule an upload with a number that is not finite does not count; with privacy it counts as zeros.

    Raises:
        Diverged: an upload has a number that is not finite, and nothing refuses it.
    """
    if not (job.attacks or job.robust or job.privacy):
        return list(ids), list(ups), []
    broken = {i: path for i, up in zip(ids, ups, strict=True) if (path := tree.not_finite(up)) is not None}
    notes = [Note(i, "refused", 1.0) for i in broken]
    if job.privacy is not None:
        return list(ids), [job.privacy.bounded(up) for up in ups], notes
    if broken and job.robust is None:
        client, path = next(iter(broken.items()))
        raise Diverged(
            f"{job.name}: client {client}, round {number}, upload: {path} is not a finite number; "
            f"{option('robust', 'norm_bound')} refuses such uploads"
        )
    kept = [i for i in ids if i not in broken]
    if not kept:
        raise Diverged(f"{job.name}: round {number}, uploads: none is finite; look at the clients' data and settings")
    return kept, [up for i, up in zip(ids, ups, strict=True) if i not in broken], notes


def defended(
    job: Job, method: Method, number: int, ids: Sequence[int], up: Up, expected: float
) -> tuple[Up, list[Note]]:
    """The stacked uploads as the method's ``aggregate`` gets them, and what was done to single ones.

    Args:
        job: whose robust rule or privacy acts; without, nothing changes.
        method: the job's.
        number: of the round.
        ids: whose uploads these are.
        up: stacked; combined ones only without a robust rule.
        expected: participants of a round on average.
    """
    if not tree.leaves(up.value):
        return up, []
    if job.robust is not None:
        value, factor_m = job.robust(up.value)
        scaled = zip(ids, factor_m.tolist(), strict=True)
        return up._replace(value=value), [Note(i, "scaled", factor) for i, factor in scaled if factor < 1]
    if job.privacy is not None and method.combine is not None:
        key = keys.key(job.seed if job.secret is None else job.secret, number, "privacy")
        return job.privacy.noised(up, method.combine, expected, key), []
    return up, []


class Spending:
    """Epsilon after each round of a job with privacy; without, nothing."""

    def __init__(self, job: Job, share: float, done: int) -> None:
        self._ledger = None if job.privacy is None else Ledger(job.privacy)
        if self._ledger is not None:
            self._ledger.add(share, done)

    def after(self, share: float, ups: Up) -> float | None:
        """Epsilon after one more round; None if the method sends nothing or there is no privacy."""
        if self._ledger is None or not tree.leaves(ups.value):
            return None
        self._ledger.add(share)
        return self._ledger.epsilon
