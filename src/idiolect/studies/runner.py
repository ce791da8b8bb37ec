"""Running a study: every method with every seed, checkpointed, in one folder."""

from __future__ import annotations

import logging
import shlex
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from numbers import Real
from pathlib import Path
from typing import Any

import torch

from idiolect import data, engines, methods
from idiolect.core import reports, signals
from idiolect.core.errors import (
    CodeError,
    IdiolectError,
    InputError,
    Interrupted,
    RunError,
    blame,
    on_command_line,
    option,
)
from idiolect.core.option_spec import Spec
from idiolect.data import FederatedData
from idiolect.deploy.code import digest_of
from idiolect.report import Divergence
from idiolect.runs import checkpoint, environment, predictions
from idiolect.runs.environment import starts
from idiolect.runs.folder import CHECKPOINT_FILE, DIVERGED_FILE
from idiolect.runs.store import Store
from idiolect.simulation import Engine
from idiolect.simulation.attacks import attackers
from idiolect.studies.config import Study
from idiolect.studies.cost import evaluation_warning
from idiolect.studies.method_use import Use, hidden_settings, title_of
from idiolect.studies.notebook_progress import usual_watcher
from idiolect.studies.progress import Watcher
from idiolect.studies.result import Result
from idiolect.studies.schedule import Schedule
from idiolect.studies.trackers import Make, Tracking
from idiolect.training.batchnorm import ONE_AT_A_TIME

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
        watcher: is told about the progress; None shows one line in a notebook, and nothing elsewhere.
        budget: seconds after which the run stops at its last whole round, as after a signal.
        track: experiment trackers, as ``tensorboard``, ``mlflow:URI`` or ``wandb:PROJECT``, or functions that make your
            own (see ``trackers.Tracker``); one that fails is left out with a warning.
        again: the command that continues this run, for messages; None for ``idiolect run`` or ``idl.run``.

    Raises:
        InputError: a setting, the data or the folder does not allow the run, or another process uses the folder;
            nothing is written.
        CodeError: the code of a method failed; whole rounds are on disk.
        RunError: a worker died, or the disk is full; whole rounds are on disk.
        Interrupted: SIGINT or SIGTERM was received, or the budget is used up; whole rounds are on disk.
    """
    check_study(study)
    ends = end_of(budget)
    executor = engines.engine_of(engine, workers)
    engine_name = engine if isinstance(engine, str) else spec_of(executor)
    check_precision(study, executor)
    tracking = Tracking(track)
    if resume and out is None:
        raise InputError(f"resume needs the folder to continue: give {option('out')}")
    federation = study.federation()
    if not resume:  # else nothing may be left to train
        check_batchnorm(study, federation, executor)
    jobs = study.jobs(federation)
    notes = {}
    for use, job in jobs:
        with blame(f"method {use.name}"):
            notes[use.name] = job.build().note
    manifest = manifest_of(study, federation)
    store = Store(Path(out) if out is not None else None, study, manifest, resume=resume)
    result = Result(store.folder, store.study)
    schedule = Schedule(store, executor, tracking, ends)
    before, worked = list(store.diverged), executor.seconds
    if backlog := schedule.backlog([job for _, job in jobs]):
        _warn_of_engine(store, executor)
    if warning := evaluation_warning(study, federation.trained, backlog):
        log.warning("%s", warning)
    for name, note in notes.items():
        if note:
            log.warning("method %s: %s", name, note)

    with closing(store), signals.received(lambda number: KeyboardInterrupt()) as numbers:
        _join_predictions(store, federation)  # so that a broken file is noticed before anything is trained
        try:
            with tracking, watcher or usual_watcher() as show, executor:
                start = time.monotonic()
                try:
                    schedule.run([job for _, job in jobs], show, numbers)
                finally:
                    if work := executor.seconds - worked:
                        store.add_start(_start(executor, work, time.monotonic() - start))
            store.merge()
            _join_predictions(store, federation)
            _warn(store, before)
            result.report()
        except (IdiolectError, KeyboardInterrupt) as error:
            if executor.seconds > worked or not isinstance(error, InputError):  # else nothing was done
                with suppress(IdiolectError):
                    store.merge()
            command = again or command_again("run", "study", store.folder, engine_name, workers, bool(study.imports()))
            again = f"continue with: {command}"
            if isinstance(error, Interrupted | KeyboardInterrupt):
                where = "at once" if isinstance(error, KeyboardInterrupt) else schedule.where
                raise Interrupted(f"stopped {where}; {again}", numbers[0] if numbers else signal.SIGINT) from None
            if isinstance(error, CodeError):
                if schedule.has_rounds([job for _, job in jobs]):
                    raise CodeError(f"{error}; what was done is kept: fix this, then {again}") from error
                raise CodeError(f"{error}; no round is done yet: fix this, then start again with: {command}") from error
            if isinstance(error, RunError):
                raise RunError(f"{error}; what was done is kept, {again}") from error
            raise
    return result


def manifest_of(study: Study, federation: FederatedData) -> dict[str, Any]:
    """What a run's folder says of its clients and methods, and of the code of a network of one's own."""
    manifest = data.manifest(federation) | {"methods": {u.label: _about(u) for u in study.methods}}
    if hostile := attackers(study.attacks, federation.trained):
        manifest["attackers"] = hostile
    if digest := study.task_of(federation).network.frozen_digest:
        manifest["frozen"] = digest
    if own := digest_of(study.model):
        manifest["network"] = own
    return manifest


def check_study(study: object) -> None:
    """Check that this is a study.

    Raises:
        InputError: it is something else, such as the settings of one or a path.
    """
    if not isinstance(study, Study):
        fix = "give idiolect.Study(...), or idiolect.Study.read(path)"
        raise InputError(f"this is a {type(study).__name__}, not a study: {fix}")


def check_precision(study: Study, engine: Engine) -> None:
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


def check_batchnorm(study: Study, federation: FederatedData, engine: Engine) -> None:
    """Check that an engine can train the study's batch normalisations.

    Raises:
        InputError: it trains several clients together, whose batches are filled up.
    """
    if engine.name == "vectorised" and study.task_of(federation).network.buffers in ("local", "aggregate"):
        raise InputError(ONE_AT_A_TIME)


def end_of(budget: object) -> float | None:
    """When a budget of so many seconds from now is used up.

    Raises:
        InputError: it is no number.
    """
    if budget is None:
        return None
    if isinstance(budget, bool) or not isinstance(budget, Real):
        raise InputError(f"budget={budget!r} is not a number of seconds: give one")
    return time.monotonic() + float(budget)


def spec_of(engine: Engine) -> str:
    """An engine as its name with options."""
    return str(Spec(name=engine.name, options=_options(engine)))


def _warn_of_engine(store: Store[Study], executor: Engine) -> None:
    """Warn if earlier rounds were computed with another rounding than this engine's, or in another precision."""
    now, known = _rounding(executor.name, _options(executor)), set[str]()
    if store.folder.exists():
        known = {_rounding(start["engine"], start["options"]) for start in starts(store.folder)}
    if others := sorted(known - {now}):
        log.warning(
            "%s was started %s, and now runs %s: numbers differ more from round to round than in a run without a break",
            store.folder, " and ".join(others), now,
        )  # fmt: skip


def _options(engine: Engine) -> dict[str, object]:
    return getattr(engine, "options", {})  # an engine of one's own may have none


def _rounding(engine: str, options: Mapping[str, Any]) -> str:
    """What decides how an engine rounds, in words; sequential, processes and Ray's nodes round alike."""
    if "vectorised" not in (engine, options.get("inner")):
        return "client by client"
    precision = options.get("precision", "float32")
    return "in the vectorised engine" + (f" with precision={precision}" if precision != "float32" else "")


def _start(executor: Engine, work: float, seconds: float) -> dict[str, Any]:
    """The engine, versions and machine of this start of a run: all that can change a number besides the study."""
    return {
        "engine": executor.name,
        "options": _options(executor),
        "workers": executor.workers,
        "seconds": seconds,
        "busy": work / (executor.workers * seconds),
        "versions": environment.versions(),
        "dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "machine": environment.machine(),
    }


def _join_predictions(store: Store[Study], federation: data.FederatedData) -> None:
    """Join the predictions of the methods and seeds that have reached the last round, if there are some to keep.

    Raises:
        InputError: those of one are missing or cannot be read; nothing is written.
    """
    study = store.study
    if study.save_predictions and federation.has_test:
        cells = [store.cell(use.label, seed).folder for use in study.methods for seed in study.seeds]
        complete = [cell for cell in cells if checkpoint.rounds(cell / CHECKPOINT_FILE) == study.rounds]
        predictions.merge(store.folder, complete)


def _warn(store: Store[Study], before: Sequence[Divergence]) -> None:
    """Warn which methods diverged, and for those that diverged before this start, how to try again."""
    for d in store.diverged:
        retry = f"; it was not tried again: to do so, delete {store.folder / DIVERGED_FILE} and resume"
        log.warning(
            "%s, seed %d: diverged in round %d (%s)%s", d.method, d.seed, d.round, d.said, retry if d in before else ""
        )


def command_again(
    command: str, given: str, folder: Path, engine: str, workers: int | None, imports: bool, more: str = ""
) -> str:
    """The command that continues a run or a search, for a message.

    Args:
        command: ``run`` or ``tune``.
        given: what the function of Python takes first.
        folder: of the run.
        engine: by name.
        workers: None for the usual number.
        imports: whether its study names code.
        more: what the function of Python takes last.
    """
    if not on_command_line():
        how = {"out": str(folder), "resume": True} | ({"engine": engine} if engine != "auto" else {})
        how |= {} if workers is None else {"workers": workers}
        return f"idl.{command}({given}, {', '.join(f'{k}={v!r}' for k, v in how.items())}{more})"
    words = ["idiolect", command, "--resume", "--out", str(folder)]
    words += ["--engine", engine] if engine != "auto" else []
    words += ["--workers", str(workers)] if workers is not None else []
    words += ["--allow-import"] if imports else []
    return shlex.join(words)


def _about(use: Use) -> dict[str, Any]:
    """The manifest's entry for a method."""
    entry = methods.get(use.name)
    return {
        "name": use.name, "title": title_of(use), "summary": entry.summary, "reports": reports.to_json(entry.reports),
        "code": methods.code(use.name),
    } | ({"settings": hidden} if (hidden := hidden_settings(use)) else {})  # fmt: skip
