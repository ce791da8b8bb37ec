"""Uploads that are added up where they are made, so that a round's memory does not grow with its participants."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from idiolect.core import tree
from idiolect.core.errors import Diverged
from idiolect.core.method import Method, Up
from idiolect.core.reduce import needs_each
from idiolect.core.reduction import Additions, Branch, Reduction, Sums
from idiolect.simulation import reception, summing
from idiolect.simulation.client_runner import Job, LocalResult

BRANCH = 4
"""Levels of a branch of the tree of additions that a worker sends when it is whole: 16 participants."""
_FEW = 128  # participants whose uploads the server adds up itself
_ROOM = 2**27  # bytes of all these uploads


class Places(NamedTuple):
    """Where some clients stand among all participants of a round."""

    at: Sequence[int]
    """The place of each."""
    total: int
    """All participants."""

    def of(self, some: Sequence[int]) -> Places:
        """The places of some of these clients, which are given by their positions among them."""
        return Places([self.at[k] for k in some], self.total)

    def branches(self, clients: Iterable[int]) -> list[list[int]]:
        """Clients, given by their positions, by the branch in which a worker adds them up; their order stays."""
        branches: dict[int, list[int]] = {}
        for k in clients:
            branches.setdefault(self.at[k] >> BRANCH, []).append(k)
        return list(branches.values())


def adds(job: Job, method: Method, participants: int, size: int) -> bool:
    """Whether a round's uploads are added up before they reach the server.

    Args:
        job: of the round.
        method: the job's.
        participants: of the round.
        size: bytes of a model, as the server sends it.
    """
    if needs_each(method.reduce) or job.robust is not None:
        return False
    return job.secure or participants > _FEW or participants * size > _ROOM


class Adder:
    """Adds up uploads of one round.

    Args:
        job: of the round.
        method: the job's.
        count: participants of the round.
    """

    def __init__(self, job: Job, method: Method, count: int) -> None:
        self._job, self._method = job, method
        self._additions = Additions(count)
        self._reduction: Reduction | None = None
        self._like: Up | None = None

    def take(self, round: int, client: int, place: int, result: LocalResult) -> LocalResult:
        """A client's result without its upload, and with the branches that are whole now.

        Raises:
            Diverged: the upload has a number that is not finite, and nothing refuses it.
            InputError: the method's declaration does not fit its upload.
        """
        is_refused = self.add(round, client, place, result)
        return result._replace(up=Up(), sums=self._additions.take(BRANCH), is_refused=is_refused)

    def add(self, round: int, client: int, place: int, result: LocalResult) -> bool:
        """Add an upload, or the branches that came in its place; whether it was refused."""
        for branch in result.sums:
            self._additions.add(branch)
        is_refused = result.is_refused
        if result.sums or not tree.leaves(result.up):
            return is_refused
        up = result.up
        if self._job.secure:
            self._like = self._like or summing.like(up)
            sums = summing.sums_of(tree.copy(up))
        else:
            own_up, is_refused = reception.admit(self._job, round, client, up)
            assert own_up is not None
            if self._reduction is None or self._like is None:
                self._like = tree.map(lambda a: a.to("meta"), own_up)
                self._reduction = Reduction(self._method.reduce, own_up)
            sums = self._reduction.one(own_up)
        self._additions.add(Branch(0, place, sums, self._like))
        return is_refused

    def rest(self) -> tuple[Branch, ...]:
        """The branches that are left, when all clients of this place have been taken."""
        return self._additions.take()

    def total(self) -> Branch | None:
        """The sum over all participants that came; None if nothing did."""
        return self._additions.total()


class Tally(NamedTuple):
    """The uploads of a round at the server."""

    reduction: Reduction
    sums: Sums
    up_m: Up | None
    """All of them, stacked, where the server needs each."""
    like: Up
    """The form of one."""
    ids: list[int]
    """Whose count."""
    refusals: list[int]
    notes: list[reception.Note]


def no_upload(job: Job, number: int) -> Diverged:
    """The error of a round in which every upload was refused."""
    return Diverged(f"{job.name}: round {number}, uploads: none is finite; look at the clients' data and settings")


def tally_of_sums(
    job: Job, method: Method, number: int, answers: Sequence[tuple[int, int, LocalResult]], count: int
) -> Tally:
    """The uploads of a round, of which some or all are sums already.

    Args:
        job: of the round.
        method: the job's.
        number: of the round.
        answers: the place, the client and the result of each participant that answered.
        count: of the participants that were asked.
    """
    adder, refusals = Adder(job, method, count), list[int]()
    for place, i, one in answers:
        refusals += [i] if adder.add(number, i, place, one) else []
    total = adder.total()
    like = Up() if total is None else total.like  # None: nothing is sent
    sums = Sums((), ()) if total is None else total.sums
    return Tally(Reduction(method.reduce, like), sums, None, like, [i for _, i, _ in answers], refusals, [])


def tally_of_uploads(job: Job, method: Method, number: int, answers: list[tuple[int, LocalResult]]) -> Tally:
    """The uploads of a round, one by one. The list is emptied, so that they are not in memory twice.

    Args:
        job: of the round.
        method: the job's.
        number: of the round.
        answers: the client and the result of each participant that answered.

    Raises:
        Diverged: no upload is finite, or one is not and nothing refuses it.
        InputError: the method's declaration does not fit its upload.
    """
    ids, ups, refusals = list[int](), list[Up](), list[int]()
    while answers:
        i, one = answers.pop(0)
        up, is_refused = reception.admit(job, number, i, one.up)
        refusals += [i] if is_refused else []
        if up is not None:
            ids.append(i)
            ups.append(up)
        del one, up
    if not ups:
        raise no_upload(job, number)
    like = tree.map(lambda a: a.to("meta"), ups[0])
    reduction = Reduction(method.reduce, like)
    up_m, notes = reception.robust(job, reduction, ids, tree.gather(ups))
    return Tally(reduction, reduction.of(up_m), up_m if reduction.needs_each else None, like, ids, refusals, notes)
