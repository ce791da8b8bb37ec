"""Several runs of the same clients and protocol as one, so that their methods stand in one table."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from idiolect.core.errors import InputError, brief
from idiolect.report.formatting import plain
from idiolect.runs.reader import Run, read

AGAINST = "vs FedAvg"
_SPLIT = (
    "dataset", "data", "target", "client_column", "drop", "resize", "normalise", "clients", "partition", "sizes",
    "keep", "new_clients", "data_seed", "shifts", "new_shifts",
)  # fmt: skip
_NUMBER = ("clients", "stage", "round", "validation", "threshold", "weighting", "full_last_round")
"""What of a protocol a number depends on; ``also`` and ``observe`` record more, and change none."""
_OWN = (
    *_SPLIT, "name", "methods", "seeds", "protocol", "measures", "data_dir", "checkpoint_every", "save_predictions",
)  # fmt: skip


def merged(folders: Sequence[Path]) -> Run:
    """The runs in some folders as one; a single one is read as it is.

    A method whose label is in several of them is labelled by its run: ``fedavg (NAME)``. Predictions are not read.

    Raises:
        InputError: a folder cannot be read or is given twice, or the runs have other clients or another protocol.
    """
    if len({path.resolve() for path in folders}) < len(folders):
        raise InputError("a run is given twice: give each run once")
    runs = [read(path) for path in folders]
    if len(runs) == 1:
        return runs[0]
    run_names = called(folders)
    for other, name in zip(runs[1:], run_names[1:], strict=True):
        if what := _apart(runs[0], other, run_names[0], name):
            raise InputError(f"{run_names[0]} and {name} cannot stand in one table: {what}")
    often = Counter(label for run in runs for label in run.titles)
    runs = [_labelled(run, name, often) for run, name in zip(runs, run_names, strict=True)]
    studies = [run.study for run in runs]
    first, measures = runs[0], [m for study in studies for m in study.get("measures") or ()]
    common = {k: v for k, v in first.study.items() if all(study.get(k) == v for study in studies)}
    study = common | {
        "patience": next((p for s in studies if (p := s.get("patience")) is not None), None),
        "name": " and ".join(run_names), "dataset": first.study["dataset"], "partition": first.study["partition"],
        "clients": first.study["clients"], "protocol": first.study["protocol"],
        "rounds": max(s["rounds"] for s in studies),
        "seeds": list(dict.fromkeys(seed for s in studies for seed in s["seeds"])),
        "methods": [use for s in studies for use in s["methods"]], "measures": list(dict.fromkeys(measures)),
    }  # fmt: skip
    manifest = first.manifest | {
        "methods": {label: about for run in runs for label, about in run.manifest["methods"].items()},
        "attackers": {k: v for run in runs for k, v in run.manifest.get("attackers", {}).items()},
        "notes": [*_settings(studies, run_names), *_against(runs)],
    }
    return dataclasses.replace(
        first, name=study["name"], study=study, manifest=manifest, folder=None,
        records=pd.concat([run.records for run in runs], ignore_index=True),
        timings=pd.concat([run.timings for run in runs], ignore_index=True),
        diverged=tuple(d for run in runs for d in run.diverged),
        stopped={cell: stop for run in runs for cell, stop in run.stopped.items()},
    )  # fmt: skip


def distinct(folders: Sequence[Path]) -> list[Run]:
    """The runs in some folders; those of studies with equal names also show their folders.

    Raises:
        InputError: a folder cannot be read.
    """
    runs = [read(path) for path in folders]
    often = Counter(run.name for run in runs)
    return [
        dataclasses.replace(run, name=f"{run.name} ({name})") if often[run.name] > 1 else run
        for run, name in zip(runs, called(folders), strict=True)
    ]


def called(folders: Sequence[Path]) -> list[str]:
    """The name of each run: that of its folder, or its whole path if two folders have the same name."""
    names = [path.resolve().name for path in folders]
    return names if len(set(names)) == len(names) else [str(path) for path in folders]


def _apart(a: Run, b: Run, one: str, other: str) -> str:
    """What keeps two runs from standing in one table, with the fix; "" if nothing does."""
    fix = "run both with the same settings, or show them side by side with idiolect report"
    for name in _NUMBER:
        if (mine := getattr(a.protocol, name)) != (theirs := getattr(b.protocol, name)):
            return f"the protocol's {name} is {mine} in {one} and {theirs} in {other}; {fix}"
    hashes = a.manifest.get("hash"), b.manifest.get("hash")
    if a.manifest["clients"] == b.manifest["clients"] and (hashes[0] == hashes[1] or not all(hashes)):
        return ""
    for name in _SPLIT:
        if (mine := a.study.get(name)) != (theirs := b.study.get(name)):
            return f"{name} is {_said(mine)} in {one} and {_said(theirs)} in {other}, so their samples differ; {fix}"
    return f"the clients of {one} and {other} have other samples; {fix}"


def _said(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_said, value)) or "none"
    return "not given" if value is None else plain(value) if isinstance(value, dict | str) else brief(value)


def _labelled(run: Run, name: str, often: Counter[str]) -> Run:
    """A run whose labels differ from those of the others."""
    new = {label: label if often[label] == 1 else f"{label} ({name})" for label in run.titles}
    about = {
        new[label]: m | ({} if new[label] == label else {"title": f"{m['title']} ({name})"})
        for label, m in run.manifest["methods"].items()
    }
    return dataclasses.replace(
        run, manifest=run.manifest | {"methods": about},
        records=run.records.assign(method=run.records["method"].map(new)),
        timings=run.timings.assign(method=run.timings["method"].map(lambda label: new.get(label, label))),
        diverged=tuple(d._replace(method=new[d.method]) for d in run.diverged),
        stopped={(new[label], seed): stop for (label, seed), stop in run.stopped.items()},
    )  # fmt: skip


def _settings(studies: Sequence[dict[str, Any]], run_names: Sequence[str]) -> Iterator[str]:
    """A sentence about the settings in which the runs differ."""
    keys = [k for k in dict.fromkeys(k for study in studies for k in study) if k not in _OWN]
    for key in keys:
        values = [_said(study.get(key)) for study in studies]
        if len(set(values)) > 1:
            each = ", ".join(f"{value} in {name}" for value, name in zip(values, run_names, strict=True))
            yield f"The runs differ in {key}: {each}."


def _against(runs: Sequence[Run]) -> Iterator[str]:
    """Which FedAvg the others are compared with, if there are several."""
    methods = [m for run in runs for m in run.manifest["methods"].values()]
    titles = [m["title"] for m in methods if m["name"] == "fedavg"]
    if len(titles) > 1:
        yield f"{AGAINST} is against {titles[0]}."
