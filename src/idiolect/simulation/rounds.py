"""The only round loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from idiolect.core import keys, tree
from idiolect.core.errors import CodeError, Diverged, RunError, blame
from idiolect.core.evaluation_protocol import Protocol
from idiolect.core.method import Down, Info, Method, Reduced
from idiolect.core.reduce import needs_each
from idiolect.core.tree import Tree
from idiolect.simulation import reception, records
from idiolect.simulation.adding import Places, adds, no_upload, tally_of_sums, tally_of_uploads
from idiolect.simulation.client_runner import EvaluationResult, Job, LocalResult, Phase, Stop, Watch
from idiolect.simulation.client_store import LazyStates, store
from idiolect.simulation.interfaces import Engine, Keep, Record, State, TrainingJob
from idiolect.simulation.sampling import participants, share_of

_USUAL = Protocol()
_FEATURE_CLIENTS = 4  # clients whose representations are recorded
_CLIENT_CHUNK = 128  # clients that are measured at a time, so that their messages fit in memory


def begin(method: Method, clients: int, seed: int, folder: Path | None = None) -> State:
    """The state before the first round; with a folder, large states of clients are kept there."""
    start = partial(first_state, method, seed) if method.own_start else None
    states = store(first_state(method, seed, 0), clients, folder, start)
    return State(tree.copy(method.init_server(keys.start(seed))), states, 0)


def first_state(method: Method, seed: int, client: int) -> Tree:
    """A client's state before its first round."""
    id = client if method.own_start else 0
    return tree.copy(method.init_client(keys.start(seed), torch.tensor(id)))


def fit(
    job: Job,
    engine: Engine,
    *,
    rounds: int,
    participation: float = 1.0,
    evaluate_every: int = 1,
    protocol: Protocol = _USUAL,
    state: State | None = None,
    on_round: Callable[[State, list[Record], float], None] = lambda state, records, seconds: None,
    keep: Keep | None = None,
    stop: Stop = lambda: False,
) -> State:
    """Run a job to round ``rounds``, from the start or from a state, whose clients are changed in place.

    A round: draw participants; ``send``; ``local`` for each; ``aggregate`` their uploads in the order of their numbers.
    With privacy, participants are drawn independently; if nobody is drawn, the first client's work is done and counts
    as nothing, so that the server's noise has its shape.

    At evaluation rounds and after the last, clients are measured on their test and validation samples as the protocol
    says: all or the participants, on their personal models (``personalise``, then ``predict``) or at another stage;
    what ``personalise`` made is not kept. After the last round the clients that did not train join (``init_client``,
    ``send``, ``personalise``) and are measured too, if they have such samples.

    Args:
        job: method, data, seed.
        engine: runs the clients.
        rounds: in total, those of ``state`` included.
        participation: share of the clients that take part in a round.
        evaluate_every: rounds between evaluations.
        protocol: who is measured and when, and whether all take part in the last round.
        state: where to continue.
        on_round: called after each round with the new state, the round's records and its seconds: those of the server,
            and those of the clients' work over the number of workers. Waiting for another job's clients does not count.
        keep: called with the predictions of each client's test samples at the protocol's stage after the last round,
            and of those of new clients, before ``on_round``.
        stop: asked between clients; True ends the run at the last whole round.

    Raises:
        RunError: a client or the server failed or diverged.
        Interrupted: ``stop`` said so.
    """
    latest = state or begin(job.build(), job.data.trained, job.seed)

    def note(state: State, records: list[Record], seconds: float) -> None:
        nonlocal latest
        latest = state
        on_round(state, records, seconds)

    def fail(error: Diverged) -> None:
        raise error

    fit_jobs(
        [TrainingJob(job, latest, note, fail, keep)], engine, rounds=rounds, participation=participation,
        evaluate_every=evaluate_every, protocol=protocol, stop=stop,
    )  # fmt: skip
    return latest


def fit_jobs(
    jobs: Sequence[TrainingJob],
    engine: Engine,
    *,
    rounds: int,
    until: int | None = None,
    participation: float = 1.0,
    evaluate_every: int = 1,
    protocol: Protocol = _USUAL,
    stop: Stop = lambda: False,
) -> None:
    """``fit`` for jobs that train alike: they train once, and each personalises, predicts and is measured as its own.

    A round of the training counts in the seconds of each job, as if it had trained alone. One may stop before the
    others (see ``TrainingJob.stops``): its last round is then the last for it alone.

    Args:
        jobs: jobs whose methods train alike (see ``same_training``), with the same data and seed and equal states.
        engine: as for ``fit``, and so are the others.
        rounds: in total.
        until: the round after which to end for now, in which clients are measured too; None ends after the last. What
            depends on the last round, as a schedule, depends on ``rounds``.
        participation: share of the clients.
        evaluate_every: rounds between evaluations.
        protocol: who is measured and when.
        stop: asked between clients.

    Raises:
        RunError: a client or the server failed.
        Interrupted: ``stop`` said so.
    """
    runs, first = list[_Run](), jobs[0].job
    reception.check_sums(first, protocol, share_of(first.data.trained, participation))
    spending = reception.Spending(first)
    try:
        for training in jobs:
            watch = _watch(training.job, protocol, rounds, participation)
            job = training.job._replace(watch=watch, keeps=rounds if training.keep else None, rounds=rounds)
            runs.append(_Run(training._replace(job=job), engine, stop, spending))
        trainer, left = runs[0], list(runs)

        def share(number: int) -> float:
            everybody = number in trainer.method.full_rounds
            return 1.0 if everybody else protocol.share(number, rounds, participation)

        for number in range(1, trainer.state.round + 1):
            spending.add(share(number))
        spending.add_repeats(share(trainer.state.round + 1), trainer.state.round)
        end = rounds if until is None else min(until, rounds)
        for number in range(trainer.state.round + 1, end + 1):
            evaluating = number % evaluate_every == 0 or number == end
            trainer.start()
            try:
                outcome = trainer.round(number, share(number), evaluating)
            except Diverged as error:
                for run in left:
                    run.training.on_divergence(_error_of(run.job.name, trainer.job.name, error))
                return
            seconds = trainer.seconds()
            logs: list[tuple[_Run, list[Record], float, bool]] = []
            for run in list(left):
                run.start()
                try:
                    log = [*outcome.log, *(run.records_after(outcome, number, protocol) if evaluating else ())]
                    is_last = number == rounds or (evaluating and run.training.stops(number, log))
                    if is_last:
                        log += run.records_of_newcomers(outcome.server, number, protocol)
                except Diverged as error:
                    left.remove(run)
                    run.training.on_divergence(error)
                    continue
                logs.append((run, log, seconds + run.seconds(), is_last))
            for run, log, time_spent, is_last in logs:  # now that the round is whole for all
                run.whole(outcome, number)
                run.training.on_round(run.state, log, time_spent)
                if is_last:
                    left.remove(run)
            if not left:
                return
            if trainer not in left:  # its states are no longer kept up to date
                trainer = left[0]
    finally:
        for run in runs:
            run.session.close()


def _error_of(name: str, trainer: str, error: Diverged) -> Diverged:
    """The error of a training, as of a job that shares it."""
    return Diverged(name + str(error).removeprefix(trainer)) if str(error).startswith(f"{trainer}:") else error


def _watch(job: Job, protocol: Protocol, rounds: int, participation: float) -> Watch | None:
    """What a protocol observes: features of the first client of each shift, and of the first without a shift."""
    if not protocol.observe:
        return None
    share = protocol.share(rounds, rounds, participation)
    whom: Sequence[int] = range(job.data.trained)
    if protocol.clients == "participants":
        whom = _participants(job, rounds, share)
    if protocol.clients == "new":
        whom = range(job.data.trained, job.data.clients)
    first = {job.data.shifts[i]: i for i in reversed(whom)}
    clients = (
        sorted(first.values(), key=lambda i: (job.data.shifts[i] != "", i)) if "features" in protocol.observe else []
    )
    phase: Phase = "evaluate" if protocol.stage == "personalised" else "received"
    return Watch(phase, "gaussianity" in protocol.observe, tuple(clients[:_FEATURE_CLIENTS]), rounds)


def _participants(job: Job, number: int, share: float) -> list[int]:
    """The clients of a round. With privacy nobody else knows them: epsilon counts on it."""
    independent = job.privacy is not None
    return participants(job.hidden_seed if independent else job.seed, number, job.data.trained, share, independent)


class Outcome(NamedTuple):
    """A round of a training."""

    server: Tree
    clients: dict[int, Tree]
    """The new states, of participants and of the clients that stood by."""
    ids: list[int]
    """The participants that answered."""
    log: list[Record]


class _Run:
    """A running job."""

    def __init__(self, training: TrainingJob, engine: Engine, stop: Stop, spending: reception.Spending) -> None:
        self.training, self.job, self.state, self.stop = training, training.job, training.state, stop
        self.method, self.spending = self.job.build(), spending
        reception.check(self.job, self.method)
        self.keep: Keep = training.keep or (lambda stage, client, p_NC: None)
        self.session, self._engine = engine.open(self.job), engine
        self.start()

    def start(self) -> None:
        """Start to count ``seconds``."""
        self._map_seconds, self._last = 0.0, (time.perf_counter(), self.session.seconds)

    def seconds(self) -> float:
        """Seconds of the server since ``start``, and of the clients' work divided by the number of workers."""
        start, work = self._last
        elapsed = time.perf_counter() - start - self._map_seconds
        return elapsed + (self.session.seconds - work) / self._engine.workers

    def map(
        self, phase: Phase, round: int, ids: Sequence[int], down: Down, clients: Sequence[Tree],
        places: Places | None = None,
    ) -> list[Any]:  # fmt: skip
        start = time.perf_counter()
        answers = self.session.map(phase, round, ids, down, clients, self.stop, places)
        self._map_seconds += time.perf_counter() - start
        return list(answers)

    def round(self, number: int, share: float, reporting: bool) -> Outcome:
        """A round of the training."""
        job, state = self.job, self.state
        sample = _participants(job, number, share)
        addressees = sample or [0]
        down = self.send(state.server, addressees, number)
        adding = adds(job, self.method, len(addressees), tree.nbytes(down.shared))
        places = Places(range(len(addressees)), len(addressees)) if adding else None
        answers: list[LocalResult | None] = self.map(
            "local", number, addressees, down, LazyStates(state.clients, addressees), places
        )
        results = [(k, i, one) for k, (i, one) in enumerate(zip(addressees, answers, strict=True)) if one is not None]
        answers.clear()
        ids = [i for _, i, _ in results]
        here = set(ids)
        log = [Record(number, i, "wire", "answered", 0.0) for i in addressees if i not in here]
        if not results:
            if job.secure:  # too few for a sum: nothing changes
                return Outcome(state.server, {}, ids, log)
            raise RunError(f"{job.name}: round {number}: no client answered; the run can be continued")
        with blame(f"{job.name}: round {number}, info"):
            log += records.of_clients(number, [(i, one.info) for _, i, one in results])
        new = {i: one.client for _, i, one in results}
        with blame(f"{job.name}: server, round {number}, uploads"):
            if adding:
                tally = tally_of_sums(job, self.method, number, results, len(addressees))
            else:
                uploads = [(i, one) for _, i, one in results]
                results.clear()
                tally = tally_of_uploads(job, self.method, number, uploads)
        if sample and len(tally.refusals) == len(ids):
            raise no_upload(job, number)
        log += records.of_wire(number, ids, down, len(addressees), reception.nbytes(job, tally.like))
        sums = tally.sums if sample else tree.map(torch.zeros_like, tally.sums)
        with blame(f"{job.name}: server, round {number}, uploads"):
            up = reception.reduce(job, number, tally.reduction, sums, tally.up_m, share * job.data.trained)
        notes = [reception.Note(i, "refused", 1.0) for i in tally.refusals] + tally.notes
        if (epsilon := self.spending.after(share, sums)) is not None:
            notes += [reception.Note(i, "epsilon", epsilon) for i in ids]
        server, info = self.aggregate(state.server, up, tally.ids, number)
        with blame(f"{job.name}: round {number}, info"):
            log += records.of_notes(number, notes)
            log += records.of_server(number, tally.ids, info) if reporting else []
        if self.method.stand_by is not None:
            new |= self.waiting(number, sorted(set(range(job.data.trained)) - set(addressees)))
        return Outcome(server, new, ids, log)

    def waiting(self, number: int, ids: Sequence[int]) -> dict[int, Tree]:
        """The states of the clients that were not drawn, after what they do in a round."""
        new: dict[int, Tree] = {}
        for some in (ids[k : k + _CLIENT_CHUNK] for k in range(0, len(ids), _CLIENT_CHUNK)):
            down = self.send(self.state.server, some, number)
            answers: list[LocalResult | None] = self.map(
                "stand_by", number, some, down, LazyStates(self.state.clients, some)
            )
            new |= {i: one.client for i, one in zip(some, answers, strict=True) if one is not None}
        return new

    def records_after(self, outcome: Outcome, number: int, protocol: Protocol) -> list[Record]:
        """The records of the clients after a round, at the protocol's stages."""
        log, new = list[Record](), outcome.clients
        whom = outcome.ids if protocol.clients == "participants" else range(self.job.data.trained)
        for stage in protocol.stages:
            clients = (new[i] if i in new else self.state.clients[i] for i in whom)
            log += self.measured(outcome.server, number, whom, clients, stage, stage == protocol.stage)
        return log

    def records_of_newcomers(self, server: Tree, number: int, protocol: Protocol) -> list[Record]:
        """The records of the clients that did not train, after the last round."""
        data = self.job.data
        newcomers = [i for i in range(data.trained, data.clients) if len(data.measured(i))]
        fresh = (first_state(self.method, self.job.seed, i) for i in newcomers)
        return self.measured(server, number, newcomers, fresh, "new", protocol.clients == "new")

    def whole(self, outcome: Outcome, number: int) -> None:
        """Take over the states of a round that is whole."""
        with blame(f"{self.job.name}: round {number}, states"):
            self.state.clients.put(list(outcome.clients), list(outcome.clients.values()))
        self.state = State(outcome.server, self.state.clients, number)

    def measured(
        self, server: Tree, number: int, ids: Sequence[int], clients: Iterable[Tree], stage: str, is_observed: bool
    ) -> list[Record]:
        """The records of some clients' models on their samples at a stage, given the clients' states.

        What a client runner observed is recorded if this stage ``is_observed``.
        """
        records, states = [], iter(clients)
        for part in (ids[k : k + _CLIENT_CHUNK] for k in range(0, len(ids), _CLIENT_CHUNK)):
            down, some = self.send(server, part, number), [next(states) for _ in part]
            if stage == "trained":
                results = self.after_training(server, number, part, down, some)
            else:
                results = self.map("received" if stage == "received" else "evaluate", number, part, down, some)
            for i, result in zip(part, results, strict=True):
                if result is None:
                    continue
                values = {k: v for k, v in result._asdict().items() if isinstance(v, float)}
                values |= dict(result.measures or {}) | dict((is_observed and result.observations) or {})
                records += [Record(number, i, stage, k, v) for k, v in values.items()]
                if result.p_NC is not None and (is_observed or stage == "new"):
                    self.keep(stage, i, result.p_NC)
        return records

    def after_training(
        self, server: Tree, number: int, ids: Sequence[int], down: Down, clients: Sequence[Tree]
    ) -> list[EvaluationResult | None]:
        """Each client after the local training of the next round, as if only its upload reached the server."""
        results: list[LocalResult | None] = self.map("local", number + 1, ids, down, clients)
        outcomes: list[EvaluationResult | None] = []
        for i, result in zip(ids, results, strict=True):
            if result is None or reception.admit(self.job, number, i, result.up)[0] is None:
                outcomes.append(None)
                continue
            tally = tally_of_uploads(self.job, self.method, number, [(i, result)])
            up = tally.reduction.reduced(tally.sums, tally.up_m)
            own, _ = self.aggregate(server, up, [i], number)
            outcomes += self.map("received", number, [i], self.send(own, [i], number), [result.client])
        return outcomes

    def send(self, server: Tree, ids: Sequence[int], number: int) -> Down:
        with blame(f"{self.job.name}: server, round {number}, send"):
            return self.method.send(server, torch.tensor(list(ids)))

    def aggregate(self, server: Tree, up: Reduced, ids: Sequence[int], number: int) -> tuple[Tree, Info]:
        where = f"{self.job.name}: server, round {number}, aggregate"
        with blame(where):
            answer = self.method.aggregate(server, up, torch.tensor(ids))
        if not (type(answer) is tuple and len(answer) == 2 and isinstance(answer[1], dict)):
            what = "does not return a pair (server, info)"
            raise CodeError(f"{where}: {what}: info is a dictionary of tensors by metric, {{}} where there is none")
        server, info = answer
        if info and not needs_each(self.method.reduce):
            what = f"reports {next(iter(info))}, and a server that gets means and sums sees no single participant"
            raise CodeError(f"{where}: {what}: return {{}} as its info, and let clients report")
        if (path := tree.not_finite({"server": server})) is not None:
            raise Diverged(f"{where}: training diverged ({path} is not a finite number); lower the learning rate")
        return tree.copy(server), info
