"""What the server does with uploads between the wire and its method: refuses, bounds, combines robustly, adds noise."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from typing import NamedTuple

from idiolect.core import keys, tree
from idiolect.core.errors import Diverged, InputError, argument, on_command_line, option
from idiolect.core.evaluation_protocol import Protocol
from idiolect.core.method import Method, Reduced, Up
from idiolect.core.reduce import needs_each, needs_exact, sends_models
from idiolect.core.reduction import Reduction, Sums
from idiolect.simulation import summing, uploads
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
    """Check, before anything is trained, that the job's robust rule, privacy and uploads are possible for the method.

    Raises:
        InputError: the method's server needs each upload, or uploads as they were sent, delta is too large, or a
            package is missing.
    """
    if needs_exact(method.reduce):
        changes = (
            ("privacy", argument("privacy"), job.privacy),
            ("a robust rule", argument("robust"), job.robust),
            ("steps that change uploads", _steps(), job.uploads),
        )
        for what, setting, there in changes:
            if there:
                raise InputError(
                    f"method {job.name} cannot take {what}, because its server needs parts of the uploads as they were "
                    f"sent: leave out {setting}, or this method"
                )
    if sends_models(method.reduce) and any(isinstance(step, uploads.Clip | uploads.TopK) for step in job.uploads):
        raise InputError(
            f"method {job.name} cannot take clip or top_k, because its clients send whole models and no increments, of "
            f"which these leave hardly anything: leave them out of {_steps()}, or this method"
        )
    if job.privacy is None and job.robust is None:
        return
    if job.privacy is not None and job.robust is not None:
        raise InputError(
            f"{argument('privacy')} and {argument('robust')} do not go together: what one client can change in a "
            "robust estimate is not bounded by its own norm; leave one of them out (privacy bounds norms too)"
        )
    if job.privacy is not None:
        accounting()
        if job.privacy.delta * job.data.trained >= 1:
            raise InputError(
                f"privacy: delta={job.privacy.delta:g} allows to publish one of {job.data.trained} clients as it is: "
                f"take less than {1 / job.data.trained:.2g}"
            )
    if not needs_each(method.reduce):
        return
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


def _steps() -> str:
    """The name of the setting of uploads: in Python and in a file it has another one than the option."""
    return argument("upload") if on_command_line() else "uploads"


def check_sums(job: Job, protocol: Protocol, participants: int) -> None:
    """Check, before anything is trained, that a job whose server gets sums alone can be run and measured like this.

    Raises:
        InputError: a round has too few participants, or something needs the upload of each.
    """
    if not job.secure:
        return
    what = argument("secure_aggregation")
    if job.privacy is not None or job.robust is not None:
        other = argument("robust" if job.privacy is None else "privacy")
        raise InputError(
            f"{what} and {other} do not go together: {other} acts on the upload of each client, which nobody sees "
            f"then; leave one of them out (clients can clip their own uploads: {option('upload', 'clip:norm=1.0')})"
        )
    if "trained" in protocol.stages:
        raise InputError(
            f"{what}: the stage trained needs the upload of each client: leave it out of {argument('protocol')}"
        )
    if participants < LEAST:
        raise InputError(
            f"{what}: a round has {participants} of {job.data.trained} clients, and a sum over fewer than {LEAST} "
            f"hides nobody: raise {argument('participation')}, or leave out {what}"
        )


def nbytes(job: Job, up: Up) -> int:
    """The bytes of an upload of this form on the wire; what is masked is 64-bit numbers, and cannot be compressed."""
    return 8 * sum(a.numel() for a in tree.leaves(up)) if job.secure else uploads.nbytes(job.uploads, up)


def admit(job: Job, number: int, client: int, up: Up) -> tuple[Up | None, bool]:
    """An upload as it counts, None if it does not, and whether it was refused.

    With a robust rule an upload with a number that is not finite does not count; with privacy it counts as zeros, and
    every upload is bounded.

    Raises:
        Diverged: the upload has a number that is not finite, and nothing refuses it.
    """
    if not (job.attacks or job.robust or job.privacy):
        return up, False
    path = tree.not_finite(up)
    if job.privacy is not None:
        return job.privacy.bound(up), path is not None
    if path is not None and job.robust is None:
        raise Diverged(
            f"{job.name}: client {client}, round {number}, upload: {path} is not a finite number; "
            f"{option('robust', 'norm_bound')} refuses such uploads, where the method can take it"
        )
    return (up, False) if path is None else (None, True)


def robust(job: Job, reduction: Reduction, ids: Sequence[int], up_m: Up) -> tuple[Up, list[Note]]:
    """Stacked uploads after the job's robust rule, and whose were scaled."""
    if job.robust is None or not tree.leaves(up_m.value):
        return up_m, []
    value, factor_m = job.robust(up_m.value, reduction.present(up_m))
    pairs = zip(ids, factor_m.tolist(), strict=True)
    return up_m._replace(value=value), [Note(i, "scaled", factor) for i, factor in pairs if factor < 1]


def reduce(job: Job, number: int, reduction: Reduction, sums: Sums, up_m: Up | None, mean_count: float) -> Reduced:
    """What the method's ``aggregate`` gets of the sums of a round; with privacy, after its noise.

    Args:
        job: of the round.
        number: of the round.
        reduction: of the job's method.
        sums: over all participants.
        up_m: their uploads, stacked, where the server needs each.
        mean_count: participants of a round on average.
    """
    if job.secure:
        sums = summing.decode(sums)
    if job.privacy is None or not sums.value:
        return reduction.reduced(sums, up_m)
    key = keys.key(_noise_seed(job, sums), number, "privacy")
    if job.releases is not None:
        job.releases.add()
    return reduction.reduced(job.privacy.add_noise(sums, mean_count, key), count=mean_count)


def _noise_seed(job: Job, sums: Sums) -> int:
    """The seed of a round's noise.

    Other sums get other noise where a secret is its seed. Else a round that is repeated with the uploads of others
    would have the same noise, and the difference of the two models none.
    """
    if job.secret is None:
        return job.seed
    content = b"".join(a.contiguous().numpy().tobytes() for a in sums.value)
    return int.from_bytes(hmac.digest(job.secret.to_bytes(8, "big"), content, "sha256")[:7], "big")


class Spending:
    """Epsilon after each round of a job with privacy; without, nothing."""

    def __init__(self, job: Job) -> None:
        self._ledger = None if job.privacy is None else Ledger(job.privacy)
        self._releases = job.releases

    def add(self, share: float, rounds: int = 1) -> None:
        """Rounds that were, in which each client took part with this probability."""
        if self._ledger is not None:
            self._ledger.add(share, rounds)

    def add_repeats(self, share: float, rounds: int) -> None:
        """Noisy sums that were computed besides those of these rounds."""
        if self._releases is not None:
            self.add(share, max(0, self._releases.count() - rounds))

    def after(self, share: float, sums: Sums) -> float | None:
        """Epsilon after one more round; None if the method sends nothing or there is no privacy."""
        if self._ledger is None or not sums.value:
            return None
        self.add(share)
        return self._ledger.epsilon
