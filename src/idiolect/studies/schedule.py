"""The schedule of a study's jobs, as many side by side as an engine needs, and what writes what they measure."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from pathlib import Path

import pandas as pd
import torch

from idiolect.core.arrow_tables import to_frame
from idiolect.core.documents import read_json
from idiolect.core.errors import Diverged, Interrupted, RunError
from idiolect.core.objectives import ACCURACY
from idiolect.report import Divergence
from idiolect.runs import checkpoint, predictions
from idiolect.runs.early_stopping import Stop, stop_of, validation_means
from idiolect.runs.folder import CHECKPOINT_FILE, MANIFEST_FILE, RECORDS_FILE, cell_folder, client_states
from idiolect.runs.schema import RECORDS
from idiolect.runs.store import CellStore, Store
from idiolect.simulation import Engine, Job, Record, State, TrainingJob, begin, fit_jobs
from idiolect.simulation.attacks import attackers
from idiolect.studies.config import Study
from idiolect.studies.progress import Watcher
from idiolect.studies.trackers import Tracking, measures
from idiolect.training.sharing import same_training


class Schedule:
    """The jobs of a study on one engine, as many side by side as keep its workers busy.

    Args:
        store: the folder of the run.
        engine: runs the clients.
        tracking: told what is measured.
        ends: when to stop, on the clock of ``time.monotonic``.
        joins: whether the run's records are joined whenever a job has ended, so that they can be read at once. It
            reads the records of all jobs each time.
    """

    def __init__(
        self, store: Store[Study], engine: Engine, tracking: Tracking, ends: float | None = None, joins: bool = True
    ) -> None:
        self._store, self._engine, self._tracking, self._ends, self._joins = store, engine, tracking, ends, joins
        self._halt, self._lock = threading.Event(), threading.Lock()
        self._progress: dict[tuple[str, int], int] = {}
        self._until = store.study.rounds
        self._over = set[tuple[str, int]]()

    @property
    def where(self) -> str:
        """How far the running jobs are."""
        rounds = self._store.study.rounds
        parts = [f"round {n} of {rounds} of {label}, seed {seed}" for (label, seed), n in self._progress.items()]
        return f"after {' and '.join(parts)}" if parts else "before the first round"

    def run(self, jobs: Sequence[Job], watcher: Watcher, signals: Sequence[int], until: int | None = None) -> None:
        """Run the remaining rounds of every job; the first failure ends all, each at its last whole round.

        If a job diverges, only this job ends. ``until`` is the round after which jobs end for now; None: the last.
        """
        self._until = until or self._store.study.rounds
        self._halt.clear()
        units = self._units(jobs)
        lanes = min(self._engine.lanes, len(units))
        by = jobs[0].data.score if jobs else ACCURACY
        if not all(job.data.has_test for job in jobs[:1]):
            by = by._replace(name=f"validation {by.name}")
        watcher.plan(self._store.study.rounds, self._rounds_on_disk(jobs), self._engine, by)

        def stop() -> bool:
            return bool(signals) or self._halt.is_set() or (self._ends is not None and time.monotonic() > self._ends)

        if lanes == 1:
            for unit in units:
                self._one(unit, watcher, stop)
            return
        with ThreadPoolExecutor(lanes, initializer=torch.set_num_threads, initargs=(torch.get_num_threads(),)) as pool:
            futures = [pool.submit(self._one, unit, watcher, stop) for unit in units]
            try:
                pending, failure = set(futures), False
                while pending and not failure:  # a signal in another thread is handled only when this one wakes up
                    complete, pending = wait(pending, timeout=0.2, return_when=FIRST_EXCEPTION)
                    failure = any(f.exception() for f in complete)
            finally:
                self._halt.set()
                pool.shutdown(cancel_futures=True)
        errors = [f.exception() for f in futures if not f.cancelled()]
        first = next((e for e in errors if e is not None and not isinstance(e, Interrupted)), None)
        for error in (first, *errors):
            if error is not None:
                raise error

    def _units(self, jobs: Sequence[Job]) -> list[list[Job]]:
        """The jobs in order, those together that have one training: of the same seed, and as far."""
        methods = {job.name: job.build() for job in jobs}
        rounds, units = self._rounds_on_disk(jobs), list[list[Job]]()
        for job in jobs:

            def shares(first: Job, job: Job = job) -> bool:
                far = rounds[first.name, first.seed] == rounds[job.name, job.seed]
                return first.seed == job.seed and far and same_training(methods[first.name], methods[job.name])

            unit = next((unit for unit in units if shares(unit[0])), None)
            if unit is None:
                units.append([job])
            else:
                unit.append(job)
        return units

    def backlog(self, jobs: Sequence[Job]) -> dict[tuple[str, int], int]:
        """Rounds on disk, for the jobs that are not finished."""
        ended = {(d.method, d.seed) for d in self._store.diverged}
        ended |= {
            (job.name, job.seed) for job in jobs
            if _is_complete(self._store.study, job, self._store.cell(job.name, job.seed))
        }  # fmt: skip
        return {k: n for k, n in self._rounds_on_disk(jobs).items() if k not in ended}

    def has_rounds(self, jobs: Sequence[Job]) -> bool:
        """Whether a job has a whole round on disk."""
        return any(self._rounds_on_disk(jobs).values())

    def advance(self, job: Job, round: int, is_over: bool) -> None:
        """Take that a job has done this round, which may be its last."""
        with self._lock:
            self._progress[job.name, job.seed] = round
            if is_over:
                self._over.add((job.name, job.seed))

    def diverge(self, job: Job, message: str) -> Divergence:
        """Write that a job has diverged in the round after its last."""
        with self._lock:
            divergence = Divergence(job.name, job.seed, self._progress.pop((job.name, job.seed)) + 1, message)
            self._store.diverge(divergence)
        return divergence

    def _rounds_on_disk(self, jobs: Sequence[Job]) -> dict[tuple[str, int], int]:
        cells = {(j.name, j.seed): self._store.cell(j.name, j.seed).folder / CHECKPOINT_FILE for j in jobs}
        return {key: checkpoint.rounds(path) for key, path in cells.items()}

    def _one(self, unit: Sequence[Job], watcher: Watcher, stop: Callable[[], bool]) -> None:
        """The rest of some jobs that train alike; where their states differ, one training after the other."""
        if stop():
            raise Interrupted
        writers = [writer for job in unit if (writer := self._writer_of(job, watcher))]
        while writers:
            group = [writer for writer in writers if writer.latest.equals(writers[0].latest)]
            writers = [writer for writer in writers if writer not in group]
            if group[0].latest.round < self._until:
                self._fit(group, stop)
                if self._joins:
                    with self._lock:
                        self._store.merge()

    def _writer_of(self, job: Job, watcher: Watcher) -> _CellWriter | None:
        """A job from its state on disk; None if it has diverged or has stopped early."""
        key, cell = (job.name, job.seed), self._store.cell(job.name, job.seed)
        with self._lock:
            for before in self._store.diverged:
                if (before.method, before.seed) == key:
                    watcher.diverged(*key, before.round)
                    return None
            state = cell.load(begin(job.build(), job.data.trained, job.seed, client_states(cell.folder)))
            writer = _CellWriter(self, job, cell, state, watcher)
            if writer.stop is not None and state.round < self._store.study.rounds:
                watcher.stopped(*key, *writer.stop)
                return None
            watcher.start(*key, state.round)
            self._progress = {k: n for k, n in self._progress.items() if k not in self._over} | {key: state.round}
            if state.round == self._store.study.rounds:
                self._over.add(key)
        return writer

    def _fit(self, writers: Sequence[_CellWriter], stop: Callable[[], bool]) -> None:
        study = self._store.study
        try:
            with ExitStack() as open_:
                for writer in writers:
                    job, state = writer.job, writer.latest
                    track = self._tracking.of(study, job.name, job.seed, writer.cell.folder, state.round)
                    writer.trackers = open_.enter_context(ExitStack())
                    writer.track = writer.trackers.enter_context(track)
                fit_jobs(
                    [writer.part for writer in writers], self._engine, rounds=study.rounds, until=self._until,
                    participation=study.participation, evaluate_every=study.evaluation, protocol=study.protocol,
                    stop=stop,
                )  # fmt: skip
        except Exception:
            for writer in writers:
                with suppress(RunError):  # the first error is the one to report
                    writer.save()
            raise


def _sizes(study: Study, job: Job, rows: Sequence[torch.Tensor]) -> list[int]:
    """How many samples each client has; attackers, who do not count, have none."""
    hostile = attackers(study.attacks, job.data.trained)
    return [0 if k in hostile else len(row_N) for k, row_N in enumerate(rows)]


class EarlyStop:
    """Whether a method and seed stops early: a function of what is on disk, so that a resumed run decides alike.

    Args:
        study: the study.
        job: the method with its seed.
        run: the run's folder.
    """

    def __init__(self, study: Study, job: Job, run: Path) -> None:
        self._study, self._job, self._run, self._means = study, job, run, dict[int, float]()
        self._sizes = dict(enumerate(_sizes(study, job, job.data.validation)))

    def take(self, records: pd.DataFrame) -> Stop | None:
        """Where it stops, by the records so far and these; None if it goes on."""
        if self._study.patience is None:
            return None
        by = self._job.data.score
        here = set(records.loc[records["metric"] == by.validation, "client"])
        hostile = attackers(self._study.attacks, self._job.data.trained)
        if any(not self._sizes[client] for client in here - set(hostile)):  # a site that came after the start
            clients = read_json(self._run / MANIFEST_FILE)["clients"]
            self._sizes = {c["id"]: sum(c.get("validation", ())) for c in clients if c["id"] not in hostile}
        means = by.sign * validation_means(records, self._study.protocol, self._sizes, metric=by.validation)
        self._means |= dict(zip(means.index.tolist(), means.tolist(), strict=True))
        return stop_of(self._means, self._study.patience)


def _is_complete(study: Study, job: Job, cell: CellStore) -> bool:
    """Whether a job has come to the last round, or has stopped early."""
    rounds = checkpoint.rounds(cell.folder / CHECKPOINT_FILE)
    if rounds >= study.rounds or study.patience is None or not rounds:
        return rounds >= study.rounds
    records = to_frame(cell.read(RECORDS_FILE, RECORDS))
    return EarlyStop(study, job, cell.folder.parents[1]).take(records[records["round"] <= rounds]) is not None


def is_finished(study: Study, jobs: Sequence[Job], folder: Path) -> bool:
    """Whether all jobs of the run in a folder have come to the last round, or have stopped early."""
    labels = [use.label for use in study.methods]
    cells = [CellStore(cell_folder(folder, labels, j.name, j.seed), study.name, j.name, j.seed) for j in jobs]
    return all(_is_complete(study, job, cell) for job, cell in zip(jobs, cells, strict=True))


class _CellWriter:
    """Writes what a job measures into its cell, and says how far it is."""

    def __init__(self, schedule: Schedule, job: Job, cell: CellStore, state: State, watcher: Watcher) -> None:
        self.job, self.cell, self.latest, self._watcher = job, cell, state, watcher
        self.trackers: ExitStack
        self.track: Callable[[int, dict[str, float]], object]
        self._schedule, self._study, self._round_on_disk = schedule, schedule._store.study, state.round
        self._rows, self._validation_rows = (
            _sizes(self._study, job, part) for part in (job.data.test, job.data.validation)
        )
        self._predictions: list[predictions.ClientPredictions] = []
        self._early = EarlyStop(self._study, job, schedule._store.folder)
        self.stop = self._early.take(to_frame(cell.records))

    def stops(self, round: int, records: list[Record]) -> bool:
        """Whether training ends with a round that was evaluated."""
        self.stop = self._early.take(pd.DataFrame(records, columns=Record._fields))
        return self.stop is not None

    @property
    def part(self) -> TrainingJob:
        """The job as the round loop takes it."""
        return TrainingJob(
            self.job,
            self.latest,
            self.on_round,
            self.on_divergence,
            self.keep if self._study.save_predictions else None,
            self.stops,
        )

    def keep(self, stage: str, client: int, p_NC: torch.Tensor) -> None:
        """Take the predictions of a client's test samples."""
        data, rows = self.job.data, self.job.data.test[client]
        truth = data.y_R[rows] if data.targets is None else data.targets.value_RD[rows]
        self._predictions.append(predictions.ClientPredictions(stage, client, truth.numpy(), p_NC.numpy()))

    def on_round(self, state: State, records: list[Record], seconds: float) -> None:
        """Take a round that is whole."""
        study, job = self._study, self.job
        self.cell.add(records, seconds)
        self.latest = state
        is_over = state.round == study.rounds or self.stop is not None
        self._schedule.advance(job, state.round, is_over)
        if state.round % study.checkpoint_every == 0 or is_over or state.round == self._schedule._until:
            self.save()
        by = job.data.score
        values = measures(records, seconds, study.protocol, self._rows, job.data.conditions, self._validation_rows, by)
        if values:
            self.track(state.round, values)
        self._watcher.recorded(job.name, job.seed, state.round, records)
        self._watcher.advance(job.name, job.seed, state.round, values.get(by.metric, values.get(by.validation)))
        if self.stop is not None and state.round < study.rounds:
            self._watcher.stopped(job.name, job.seed, *self.stop)
            self.trackers.close()

    def on_divergence(self, error: Diverged) -> None:
        """End the job; its last whole round stays."""
        with suppress(RunError):
            self.save()
        divergence = self._schedule.diverge(self.job, str(error))
        self._watcher.diverged(divergence.method, divergence.seed, divergence.round)
        self.trackers.__exit__(type(error), error, error.__traceback__)

    def save(self) -> None:
        """Write the last whole round, unless it is on disk; before the study's last one what it predicted."""
        if self.latest.round > self._round_on_disk:
            if self._predictions and self.latest.round == self._study.rounds:  # its checkpoint says they are there
                predictions.save(self.cell.folder, self.job.name, self.job.seed, self._predictions)
            self.cell.save(self.latest)
            self._round_on_disk = self.latest.round
