"""Tuning a study: trials of every method, judged on validation samples alone, and the study with what was chosen."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idiolect import engines
from idiolect.core import files, signals
from idiolect.core.errors import IdiolectError, InputError, Interrupted, RunError, option
from idiolect.runs.folder import elsewhere, hold, holds_something, new_folder
from idiolect.simulation import Engine
from idiolect.studies import Study
from idiolect.studies.progress import Watcher
from idiolect.studies.runner import check_batchnorm, check_precision, check_study, command_again, end_of, run, spec_of
from idiolect.tuning import checks, page
from idiolect.tuning import plan as plans
from idiolect.tuning.halving import rungs_of
from idiolect.tuning.outcome import REFIT_FOLDER, TUNED_FILE, Tuning
from idiolect.tuning.plan import Plan
from idiolect.tuning.progress import SearchWatcher, usual_watcher
from idiolect.tuning.sampler import Proposals, check_sampler
from idiolect.tuning.trials import USUAL_SHARE, Trials, study_of_trials

if TYPE_CHECKING:
    from idiolect.tuning.sampler import Sampler


def tune(
    study: Study,
    search: Mapping[str, Any] | str = "default",
    out: str | Path | None = None,
    *,
    trials: int = 20,
    sampler: str | Sampler = "tpe",
    halving: int = 2,
    seed: int | None = None,
    refit: bool = False,
    engine: str | Engine = "auto",
    workers: int | None = None,
    resume: bool = False,
    watcher: SearchWatcher | None = None,
    refit_watcher: Watcher | None = None,
    budget: float | None = None,
) -> Tuning:
    """Choose settings and options for every method of a study, by the accuracy on validation samples.

    Every method has the same number of trials of the same rounds. The first half of them is spread over the ranges, the
    rest is proposed by the sampler. After a fifth of the rounds one in ``halving`` trials goes on, and after three
    fifths one in ``halving`` cubed; three fifths of these are of the first half. The choice of a method is the best of
    those that reached the last round. Test samples are not measured in trials.

    Args:
        study: what is tuned. If it holds no validation samples out, trials hold out a fifth.
        search: ranges by name, as ``{"lr": "0.001..0.3:log", "fedpac.alignment": "0.1..10:log", "batch_size":
            [10, 50]}``. A name is an option of methods, or a setting that methods may have for themselves; with
            ``METHOD.`` before it, it is of one method. ``default``: the ranges that methods declare, and one of ``lr``.
        out: folder of the search; None takes the first free one of ``runs/NAME-tune``, ``runs/NAME-tune-2``, ...
        trials: of each method.
        sampler: ``tpe``, ``gp`` or ``random``; or a function from a seed to a sampler of Optuna.
        halving: of how many trials one goes on after the first cut; 1 trains all to the end.
        seed: of the trials; None takes the study's first.
        refit: run the tuned study afterwards, on training and validation samples together; a search that is resumed
            does it too if it was begun so.
        engine: as for ``run``, and so are ``workers`` and ``budget``.
        workers: worker processes.
        resume: continue the search in ``out`` (or start it, if ``out`` is empty).
        watcher: is told about the trials.
        refit_watcher: is told about the run of the tuned study.
        budget: seconds.

    Raises:
        InputError: a range, the study or the folder does not allow the search, or a run would refuse the study; nothing
            is written.
        RunError: a client failed, a worker died, or the disk is full; what was done is on disk.
        Interrupted: SIGINT or SIGTERM was received, or the budget is used up; what was done is on disk.
    """
    check_study(study)
    ends_at = end_of(budget)
    if resume and out is None:
        raise InputError(f"resume needs the folder to continue: give {option('out')}")
    if resume and out is not None and plans.has_search(Path(out)):
        refit = refit or plans.read(Path(out)).refit
    plan = Plan.of(
        search=plans.texts(search), trials=trials, sampler=sampler if isinstance(sampler, str) else _name(sampler),
        halving=halving, seed=study.seeds[0] if seed is None else seed, refit=refit,
        validation=study.protocol.validation or USUAL_SHARE,
    )  # fmt: skip
    plan.check(study)
    check_sampler(sampler)
    executor = engines.engine_of(engine, workers)
    check_precision(study, executor)
    of_trials = study_of_trials(study, plan.seed)
    federation = of_trials.federation().without_test()  # before anything is written: there must be samples to hold out
    ends = rungs_of(study, plan.halving)
    check_batchnorm(of_trials, federation, executor)
    checks.check(study, of_trials, federation, ends)
    folder = Path(out) if out is not None else new_folder(f"{study.name}-tune")
    engine_name = engine if isinstance(engine, str) else spec_of(executor)
    how, usual = {"trials": trials, "sampler": sampler, "halving": halving, "seed": seed}, signature(tune).parameters
    more = "".join(
        f", {k}={v!r}" if isinstance(v, int | str) else f", {k}={k}" for k, v in how.items() if v != usual[k].default
    )
    again = command_again("tune", "study, search", folder, engine_name, workers, bool(study.imports()), more)
    release = hold(folder)
    try:
        _open(folder, study, plan, resume)
        tuning = Tuning(folder, plan, study)
        proposals = Proposals(folder, tuning.ranges, plan.trials, sampler, plan.seed)
        each = Trials(
            folder, of_trials, federation, proposals, ends, plan.halving, on_rung=lambda: page.write(tuning)
        )  # fmt: skip
        show = watcher or usual_watcher()
        with signals.received(lambda number: KeyboardInterrupt()) as numbers:
            try:
                with show, executor:
                    show.search({label: sum(sizes) for label, sizes in proposals.sizes.items()}, each.ends)
                    each.run(executor, show, numbers, ends_at)
            except (IdiolectError, KeyboardInterrupt) as error:
                raise _explained(error, numbers, each.where, again) from None
        files.write(folder / TUNED_FILE, tuning.with_choices().to_yaml())
        page.write(tuning)
    finally:
        release()
    if refit:
        rest = None if ends_at is None else max(0.0, ends_at - time.monotonic())
        run(
            tuning.tuned, folder / REFIT_FOLDER, engine=engine, workers=workers, resume=True, watcher=refit_watcher,
            budget=rest, again=again,
        )  # fmt: skip
        page.write(tuning)
    return tuning


def _open(folder: Path, study: Study, plan: Plan, resume: bool) -> None:
    if resume and plans.has_search(folder):
        plans.same(folder, study, plan)
        if plans.read(folder).refit != plan.refit:
            plans.write(folder, study, plan)
    elif holds_something(folder) and not plans.has_hardly_begun(folder):
        if resume:
            raise InputError(f"{folder} has no search: {elsewhere()}")
        raise InputError(f"{folder} exists: {elsewhere()}, or continue the search in it with {option('resume', True)}")
    else:
        plans.write(folder, study, plan)


def _name(sampler: object) -> str:
    return f"given: {getattr(sampler, '__qualname__', type(sampler).__name__)}"


def _explained(error: BaseException, numbers: list[int], where: str, command: str) -> BaseException:
    again = f"continue with: {command}"
    if isinstance(error, Interrupted | KeyboardInterrupt):
        return Interrupted(f"stopped {where}; {again}", numbers[0] if numbers else signal.SIGINT)
    if isinstance(error, RunError):
        return RunError(f"{error}; what was done is kept, {again}")
    return error
