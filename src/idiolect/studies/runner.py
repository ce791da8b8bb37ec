"""Running a study: every method with every seed, checkpointed, in one folder."""

from __future__ import annotations

import logging
import shlex
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from idiolect import data, engines, methods
from idiolect.core import reports
from idiolect.core.errors import (
    Diverged,
    IdiolectError,
    InputError,
    Interrupted,
    RunError,
    blame,
    on_command_line,
    option,
)
from idiolect.core.option_spec import Spec
from idiolect.report import DIVERGED, Divergence
from idiolect.runs import checkpoint, environment, predictions
from idiolect.runs.store import Cell, Store
from idiolect.simulation import Engine, Job, Record, State, begin, fit
from idiolect.simulation.attacks import attackers
from idiolect.studies.config import Study
from idiolect.studies.evaluation_cost import trainings
from idiolect.studies.method_use import Use, title_of
from idiolect.studies.progress import Silent, Watcher
from idiolect.studies.result import Result
from idiolect.studies.trackers import Make, Tracking, measures

log = logging.getLogger(__name__)


def run(
    study: Study,
    out: str | Path | None = None,
    *,
    engine: str | Engine = "auto",
    workers: int | None = None,
    resume: bool = False,
    watcher: Watcher | None = None,
    budget: float | None = None,
    track: Sequence[str | Make] = (),
    again: str | None = None,
) -> Result:
    """Run a study, or the rest of it, and return what it measured.

    If a method's training diverges with a seed, it ends there, and the others go on. A logged warning and
    ``Result.diverged`` say so. A resumed run does not try it again, because the result would be the same.

    Args:
        study: the study to run.
        out: folder of the run; None takes the first free one of ``runs/NAME``, ``runs/NAME-2``, ...
        engine: ``auto``, ``sequential``, ``processes``, ``vectorised`` or ``ray``, with options as in
            ``vectorised:chunk=20``; the choice changes no number, except by the rounding of ``vectorised``. Or an
            engine itself.
        workers: worker processes; None takes one per core.
        resume: continue the run in ``out`` (or start it, if ``out`` is empty).
        watcher: is told about the progress.
        budget: seconds after which the run stops at its last whole round, as after a signal.
        track: experiment trackers, as ``tensorboard``, ``mlflow:URI`` or ``wandb:PROJECT``, or functions that make your
            own (see ``trackers.Tracker``); one that fails is left out with a warning.
        again: the command that continues this run, for messages; None for ``idiolect run`` or ``idl.run``.

    Raises:
        InputError: a setting, the data or the folder does not allow the run, or another process uses the folder;
            nothing is written.
        RunError: a client failed, a worker died, or the disk is full; whole rounds are on disk.
        Interrupted: SIGINT or SIGTERM was received, or the budget is used up; whole rounds are on disk.
    """
    ends = None if budget is None else time.monotonic() + budget
    runs = engines.engine(engine, workers) if isinstance(engine, str) else engine
    named = engine if isinstance(engine, str) else engine.name
    _check_precision(study, runs)
    tracking = Tracking(track)
    if resume and out is None:
        raise InputError(f"resume needs the folder to continue: give {option('out')}")
    federation = study.federation()
    jobs = study.jobs(federation)
    for use, job in jobs:
        with blame(f"method {use.name}"):
            job.build()
    manifest = data.manifest(federation) | {"methods": {u.label: _about(u) for u in study.methods}}
    if hostile := attackers(study.attacks, federation.trained):
        manifest["attackers"] = hostile
    store = Store(Path(out) if out is not None else None, study, manifest, resume=resume)
    result = Result(store.folder, store.study)
    sitting = _Sitting(store, runs, tracking, ends)
    before = list(store.diverged)
    if said := trainings(study, federation.trained, sitting.left([job for _, job in jobs])):
        log.warning("%s", said)

    with closing(store), _signals() as came:
        _join_predictions(store)  # so that a broken file is noticed before anything is trained
        try:
            with tracking, watcher or Silent() as show, runs:
                start = time.monotonic()
                try:
                    sitting.run([job for _, job in jobs], show, came)
                finally:
                    if runs.seconds:
                        store.ran(_ran(runs, named, time.monotonic() - start))
            store.merge()
            _join_predictions(store)
            _warn(store, before)
            result.report()
        except (IdiolectError, KeyboardInterrupt) as error:
            if runs.seconds or not isinstance(error, InputError):  # else nothing was done and nothing changes
                with suppress(IdiolectError):
                    store.merge()
            again = f"continue with: {again or _command(store.folder, named, workers, bool(study.imports()))}"
            if isinstance(error, Interrupted | KeyboardInterrupt):
                where = "at once" if isinstance(error, KeyboardInterrupt) else sitting.where
                raise Interrupted(f"stopped {where}; {again}", came[0] if came else signal.SIGINT) from None
            if isinstance(error, RunError):
                raise RunError(f"{error}; what was done is kept, {again}") from error
            raise
    return result


def _check_precision(study: Study, engine: Engine) -> None:
    """Warn if this processor has no instructions for the precision.

    Raises:
        InputError: the engine cannot compute in it.
    """
    if study.precision == "float32":
        return
    if engine.name not in ("sequential", "processes"):
        said = f"precision={study.precision} is for the engines processes and sequential, not {engine.name}"
        raise InputError(f"{said}: choose one of them with {option('engine')}, or leave precision out")
    has: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    if has and not any(there for name, there in has.items() if "bf16" in name):
        log.warning(
            "precision=%s: this processor has no instructions for it, so the run takes longer than with float32",
            study.precision,
        )


def _ran(runs: Engine, asked: str, seconds: float) -> dict[str, Any]:
    """The engine, versions and machine of this start of a run: all that can change a number besides the study."""
    return {
        "engine": runs.name,
        "options": Spec.parse(asked).options,
        "workers": runs.workers,
        "seconds": seconds,
        "busy": runs.seconds / (runs.workers * seconds),
        "versions": environment.versions(),
        "dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "machine": environment.machine(),
    }


class _Sitting:
    """The jobs of a study on one engine, as many side by side as keep its workers busy."""

    def __init__(self, store: Store[Study], engine: Engine, tracking: Tracking, ends: float | None = None) -> None:
        self._store, self._engine, self._tracking, self._ends = store, engine, tracking, ends
        self._halt, self._lock = threading.Event(), threading.Lock()
        self._at: dict[tuple[str, int], int] = {}

    @property
    def where(self) -> str:
        """How far the running jobs are."""
        rounds = self._store.study.rounds
        parts = [f"round {n} of {rounds} of {label}, seed {seed}" for (label, seed), n in self._at.items()]
        return f"after {' and '.join(parts)}" if parts else "before the first round"

    def run(self, jobs: Sequence[Job], watcher: Watcher, came: Sequence[int]) -> None:
        """Run the remaining rounds of every job; the first failure ends all, each at its last whole round.

        If a job diverges, only this job ends.
        """
        lanes = min(self._engine.lanes, len(jobs))
        watcher.plan(self._store.study.rounds, self._done(jobs), self._engine)

        def stop() -> bool:
            return bool(came) or self._halt.is_set() or (self._ends is not None and time.monotonic() > self._ends)

        if lanes == 1:
            for job in jobs:
                self._one(job, watcher, stop)
            return
        with ThreadPoolExecutor(lanes, initializer=torch.set_num_threads, initargs=(torch.get_num_threads(),)) as pool:
            futures = [pool.submit(self._one, job, watcher, stop) for job in jobs]
            try:
                left, failed = set(futures), False
                while left and not failed:  # a signal in another thread is handled only when this one wakes up
                    done, left = wait(left, timeout=0.2, return_when=FIRST_EXCEPTION)
                    failed = any(f.exception() for f in done)
            finally:
                self._halt.set()
                pool.shutdown(cancel_futures=True)
        errors = [f.exception() for f in futures if not f.cancelled()]
        first = next((e for e in errors if e is not None and not isinstance(e, Interrupted)), None)
        for error in (first, *errors):
            if error is not None:
                raise error

    def left(self, jobs: Sequence[Job]) -> dict[tuple[str, int], int]:
        """Rounds on disk, for the jobs that are not finished."""
        ended = {(d.method, d.seed) for d in self._store.diverged}
        return {k: n for k, n in self._done(jobs).items() if n < self._store.study.rounds and k not in ended}

    def _done(self, jobs: Sequence[Job]) -> dict[tuple[str, int], int]:
        cells = {(j.name, j.seed): self._store.cell(j.name, j.seed).folder / checkpoint.CHECKPOINT for j in jobs}
        return {key: checkpoint.rounds(path) for key, path in cells.items()}

    def _one(self, job: Job, watcher: Watcher, stop: Callable[[], bool]) -> None:
        if stop():
            raise Interrupted
        study, cell, key = self._store.study, self._store.cell(job.name, job.seed), (job.name, job.seed)
        with self._lock:
            for before in self._store.diverged:
                if (before.method, before.seed) == key:
                    watcher.diverged(*key, before.round)
                    return
            state = cell.load(begin(job.build(), job.data.trained, job.seed, cell.folder / "clients"))
            watcher.start(job.name, job.seed, state.round)
            self._at = {k: n for k, n in self._at.items() if n < study.rounds} | {key: state.round}
        if state.round < study.rounds:
            try:
                self._fit(job, cell, state, watcher, stop)
            except Diverged as error:
                with self._lock:
                    found = Divergence(*key, self._at.pop(key) + 1, str(error))
                    self._store.diverge(found)
                    watcher.diverged(*key, found.round)
            with self._lock:
                self._store.merge()

    def _fit(self, job: Job, cell: Cell, state: State, watcher: Watcher, stop: Callable[[], bool]) -> None:
        study, latest, saved = self._store.study, state, state.round
        hostile = attackers(study.attacks, job.data.trained)
        rows = [0 if k in hostile else len(test) for k, test in enumerate(job.data.test)]  # attackers do not count
        predicted: list[predictions.Predicted] = []

        def keep(stage: str, client: int, p_NC: torch.Tensor) -> None:
            label_N = job.data.y_R[job.data.test[client]].numpy()
            predicted.append(predictions.Predicted(stage, client, label_N, p_NC.numpy()))

        def on_round(state: State, records: list[Record], seconds: float) -> None:
            nonlocal latest, saved
            cell.add(records, seconds)
            latest = state
            with self._lock:
                self._at[job.name, job.seed] = state.round
            if state.round % study.checkpoint_every == 0 or state.round == study.rounds:
                if predicted:  # before the checkpoint, which says that they are there
                    predictions.save(cell.folder, job.name, job.seed, predicted)
                cell.save(state)
                saved = state.round
            values = measures(records, seconds, study.protocol, rows, job.data.conditions)
            if values:
                track(state.round, values)
            watcher.advance(job.name, job.seed, state.round, values.get("accuracy"))

        try:
            with self._tracking.of(study, job.name, job.seed, cell.folder, state.round) as track:
                fit(
                    job, self._engine, rounds=study.rounds, participation=study.participation,
                    evaluate_every=study.evaluation, protocol=study.protocol, state=state, on_round=on_round,
                    keep=keep if study.save_predictions else None, stop=stop,
                )  # fmt: skip
        except Exception:
            if latest.round > saved:
                with suppress(RunError):  # the first error is the one to report
                    cell.save(latest)
            raise


def _join_predictions(store: Store[Study]) -> None:
    """Join the predictions of the methods and seeds that have reached the last round, if they are kept.

    Raises:
        InputError: those of one are missing or cannot be read; nothing is written.
    """
    study = store.study
    if study.save_predictions:
        cells = [store.cell(use.label, seed).folder for use in study.methods for seed in study.seeds]
        ended = [cell for cell in cells if checkpoint.rounds(cell / "checkpoint.safetensors") == study.rounds]
        predictions.merge(store.folder, ended)


def _warn(store: Store[Study], before: Sequence[Divergence]) -> None:
    """Warn which methods diverged, and for those that diverged before this start, how to try again."""
    for d in store.diverged:
        retry = f"; it was not tried again: to do so, delete {store.folder / DIVERGED} and resume"
        log.warning(
            "%s, seed %d: diverged in round %d (%s)%s", d.method, d.seed, d.round, d.said, retry if d in before else ""
        )


@contextmanager
def _signals() -> Iterator[list[int]]:
    """The SIGINT and SIGTERM received so far; a second one stops at once."""
    came: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if len(came) > 1:
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield came
        return
    old = {s: signal.signal(s, note) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield came
    finally:
        for s, handler in old.items():
            signal.signal(s, handler)


def _command(folder: Path, engine: str, workers: int | None, imports: bool) -> str:
    if not on_command_line():
        how = {"out": str(folder), "resume": True} | ({"engine": engine} if engine != "auto" else {})
        how |= {} if workers is None else {"workers": workers}
        return f"idl.run(study, {', '.join(f'{k}={v!r}' for k, v in how.items())})"
    command = ["idiolect", "run", "--resume", "--out", str(folder)]
    command += ["--engine", engine] if engine != "auto" else []
    command += ["--workers", str(workers)] if workers is not None else []
    command += ["--allow-import"] if imports else []
    return shlex.join(command)


def _about(use: Use) -> dict[str, Any]:
    """The manifest's entry for a method."""
    entry = methods.get(use.name)
    return {
        "name": use.name, "title": title_of(use), "summary": entry.summary, "reports": reports.to_json(entry.reports)
    }  # fmt: skip
