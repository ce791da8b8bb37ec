"""A search against the same trials trained one by one to the end: time, and what is lost on validation samples.

The main job (examples/digits.yaml), seven methods. Three things are timed after one another: the search; all its trials
in one study to the end (shared training, two jobs at a time, but no halving); and each trial in a run of its own. None
measures test samples.

    python benchmarks/tuning.py [--trials 20] [--search lr=0.001..0.3:log] [--validation 0.4] [--seed 0]
                                [--workers N] [--without-runs]
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

import idiolect as idl
from idiolect.runs import reader
from idiolect.studies.method_use import with_values
from idiolect.tuning import Tuning
from idiolect.tuning.trials import study_of_trials

ROOT = Path(__file__).parents[1]


def studies_of_trials(tuning: Tuning, study: idl.Study) -> dict[tuple[str, int], idl.Study]:
    """Each trial as a study with one method, which holds the same validation samples out."""
    uses = {use.label: use for use in study.methods}
    base = study_of_trials(study, tuning.plan.seed)
    return {
        (t.method, t.number): base.with_methods([with_values(uses[t.method], t.values, f"{t.method} #{t.number}")])
        for t in tuning.each_trial
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--search", action="append", help="as for idiolect tune")
    parser.add_argument(
        "--validation", type=float, help="share of each client's training samples; default: as tune does"
    )
    parser.add_argument("--seed", type=int, help="of the search; default: the study's first")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--without-runs", action="store_true", help="leave the runs one by one out")
    options = parser.parse_args()
    search = dict(text.partition("=")[::2] for text in options.search or ["default"])
    study = idl.Study.read(ROOT / "examples" / "digits.yaml")
    if options.validation:
        held_out = study.protocol.model_copy(update={"validation": options.validation})
        study = study.model_copy(update={"protocol": held_out})
    folder = Path(tempfile.mkdtemp())
    start = time.perf_counter()
    tuning = idl.tune(
        study, search, folder / "search", trials=options.trials, seed=options.seed, workers=options.workers
    )
    searched = time.perf_counter() - start
    trials = tuning.each_trial
    print(f"search: {len(trials)} trials of {len(study.methods)} methods in {searched:.0f} s")
    each = studies_of_trials(tuning, study)
    together = next(iter(each.values())).with_methods([s.methods[0] for s in each.values()])
    federation = idl.Study.federation
    with patch.object(idl.Study, "federation", lambda study: federation(study).without_test()):
        start = time.perf_counter()
        idl.run(together, folder / "together", workers=options.workers)
        whole = time.perf_counter() - start
        print(f"all trials in one study to the end: {whole:.0f} s, {whole / searched:.2f} times the search")
        if not options.without_runs:
            start = time.perf_counter()
            for k, one in enumerate(each.values()):
                idl.run(one, folder / f"run{k}", workers=options.workers)
            alone = time.perf_counter() - start
            print(f"one by one to the end: {alone:.0f} s, {alone / searched:.2f} times the search")
    run = reader.read(folder / "together")
    last = run.select(run.protocol.stage, "validation_accuracy")
    means = last[last["round"] == study.rounds].groupby("method")["value"].mean()
    for c in tuning.chosen():
        mine = means[[label for label in means.index if label.rpartition(" #")[0] == c.method]]
        lost = 100 * (mine.max() - means[f"{c.method} #{c.trial}"])
        print(
            f"{c.title}: chosen {100 * means[f'{c.method} #{c.trial}']:.1f} %, {lost:.2f} points below the best of all"
        )
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
