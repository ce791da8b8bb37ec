"""A run folder, read and checked. Everything else in this folder works on a ``Run`` alone."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pydantic

from idiolect.core import files
from idiolect.core.documents import read_json, read_yaml
from idiolect.core.errors import InputError, brief
from idiolect.core.evaluation_protocol import Protocol, protocol_of
from idiolect.core.reports import Report, from_json
from idiolect.runs.schema import renamed

_KEYS = {
    "records.parquet": ("method", "seed", "round", "client", "stage", "metric", "value", "other"),
    "timings.parquet": ("method", "seed", "round", "seconds"),
}
_TYPES = {"method": "str", "stage": "str", "metric": "str", "value": "float64", "seconds": "float64", "other": "Int64"}
DIVERGED = "diverged.json"
_SHARES = ("accuracy", "validation_accuracy")
_STUDY = ("name", "dataset", "partition", "rounds", "clients", "seeds")


class Divergence(NamedTuple):
    """Where the training of a method with a seed came to a number that is not finite."""

    method: str
    """Its label."""
    seed: int
    round: int
    """The round in which it did; those before are on disk."""
    said: str
    """What became so, of whom, and what to do about it."""


@dataclass(frozen=True)
class Run:
    """What a run folder holds.

    Attributes:
        name: the study's name.
        study: the study as written, a mapping.
        manifest: data set, classes, clients with their class counts and shifts, methods by label; a new client as its
            rows are, not under further conditions.
        records: one row per (method, seed, round, client, stage, metric, other) with its value; ``other`` is the second
            client of a value between two, and otherwise missing.
        timings: one row per (method, seed, round) with its seconds.
        new_clients: per client number that joined after training, what else was done to its rows: "" for nothing.
        test_rows: per client number, under further conditions too, how many rows it tests on.
        diverged: the methods and seeds whose training diverged. A method of which a seed did has no final results: the
            mean of the others would be too good.
    """

    name: str
    study: dict[str, Any]
    manifest: dict[str, Any]
    records: pd.DataFrame
    timings: pd.DataFrame
    new_clients: dict[int, str] = field(default_factory=dict)
    test_rows: dict[int, int] = field(default_factory=dict)
    diverged: tuple[Divergence, ...] = ()

    @cached_property
    def titles(self) -> dict[str, str]:
        """What to call each method, by label, in the study's order; two of one title also show their label."""
        methods = {label: str(m["title"]) for label, m in self.manifest["methods"].items()}
        often = Counter(methods.values())
        return {label: title if often[title] == 1 else f"{title} ({label})" for label, title in methods.items()}

    @cached_property
    def shifts(self) -> dict[int, str]:
        """The shift of each client, by id; "" where there is none."""
        return {c["id"]: c["shift"] for c in self.manifest["clients"]}

    @cached_property
    def reports(self) -> dict[str, dict[str, Report]]:
        """What each method wants drawn, by label and metric; run folders of before hold nothing of it."""
        return {label: from_json(m.get("reports", {})) for label, m in self.manifest["methods"].items()}

    @cached_property
    def protocol(self) -> Protocol:
        """What the run's numbers mean."""
        return protocol_of(self.study)

    @cached_property
    def accuracy(self) -> pd.DataFrame:
        """Accuracy (0..1) of clients at the protocol's stage, in every evaluated round.

        A client without test rows has no accuracy (NaN) and is left out.
        """
        return self.of_protocol("accuracy")

    @cached_property
    def final(self) -> pd.DataFrame:
        """Accuracy (0..1) of the protocol's clients, in the protocol's round of each method and seed."""
        return self.last_of("accuracy")

    def of_protocol(self, metric: str) -> pd.DataFrame:
        """A metric of test rows at the protocol's stage, in every evaluated round."""
        tested = [c["id"] for c in self.manifest["clients"] if sum(c["test"])]
        stage: str = self.protocol.stage
        if self.protocol.clients == "new":
            stage, tested = "new", [c for c in tested if c in self.new_clients]
        found = self.select(stage, metric)
        return found[found["client"].isin(tested)]

    def last_of(self, metric: str) -> pd.DataFrame:
        """The same in the protocol's round: the last of each method and seed, or the best on validation rows.

        Methods that diverged are left out.
        """
        found = self.settled(self.of_protocol(metric))
        if self.protocol.round == "last":
            return last(found, "method", "seed")
        held = self.select(self.protocol.stage, "validation_accuracy")
        means = held.groupby(["method", "seed", "round"])["value"].mean()
        best = set(means.groupby(["method", "seed"]).idxmax())  # the earliest where some are equal
        rows = zip(found["method"], found["seed"], found["round"], strict=True)
        return found[np.fromiter((row in best for row in rows), bool, len(found))]

    def select(self, stage: str, metric: str) -> pd.DataFrame:
        """The records of one metric, without those that have no value."""
        r = self.records
        return r[(r["stage"] == stage) & (r["metric"] == metric) & r["value"].notna()]

    def settled(self, records: pd.DataFrame) -> pd.DataFrame:
        """Those of methods that did not diverge with any seed."""
        return records[~records["method"].isin([d.method for d in self.diverged])]

    def find(self, name: str) -> str | None:
        """The label under which a method ran: its bare name if there is one, else the first with any options."""
        labels = [label for label, m in self.manifest["methods"].items() if m["name"] == name]
        return name if name in labels else next(iter(labels), None)


def last(frame: pd.DataFrame, *by: str) -> pd.DataFrame:
    """The rows of the last round of each group."""
    return frame[frame["round"] == frame.groupby(list(by))["round"].transform("max")]


class _Client(pydantic.BaseModel):
    id: int
    train: list[int]
    test: list[int]
    shift: str
    name: str = ""
    joins: str | None = None


class _Method(pydantic.BaseModel):
    name: str
    title: str
    summary: str
    reports: dict[str, Report] = {}


class _Manifest(pydantic.BaseModel):
    dataset: str
    class_names: list[str]
    clients: list[_Client] = pydantic.Field(min_length=1)
    methods: dict[str, _Method] = pydantic.Field(min_length=1)


def read(path: Path | str) -> Run:
    """Read a run folder, whether the run has ended or is still going.

    Raises:
        InputError: the folder or one of its four files is missing, broken or belongs to another run.
    """
    path = Path(path)
    if not path.is_dir():
        raise InputError(f"there is no run folder {path}: give the folder that a run wrote")
    study = _load(path / "study.yaml", read_yaml)
    if not isinstance(study, dict) or (missing := [k for k in _STUDY if k not in study]):
        what = f"has no {missing[0]!r}" if isinstance(study, dict) else "is not a mapping"
        raise InputError(f"{path / 'study.yaml'} {what}: {_MEND}")
    if not isinstance(study["rounds"], int):
        raise InputError(f"{path / 'study.yaml'} has rounds: {study['rounds']!r}, which is not a whole number: {_MEND}")
    try:
        protocol_of(study)
    except pydantic.ValidationError as error:
        said = error.errors()[0]["msg"].lower()
        raise InputError(f"{path / 'study.yaml'} has a protocol that cannot be read ({said}): {_MEND}") from None
    manifest = _load(path / "manifest.json", read_json)
    try:
        checked = _Manifest.model_validate(manifest)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(step) for step in first["loc"]) or "content"
        raise InputError(f"{path / 'manifest.json'}: {where}: {first['msg'].lower()}: {_MEND}") from None
    if edit := edited(study, manifest):
        raise InputError(f"{path / 'study.yaml'} has changed since the run began ({edit}): undo that")
    for client in checked.clients:
        if not len(client.train) == len(client.test) == len(checked.class_names):
            raise InputError(f"{path / 'manifest.json'}: client {client.id} has not one count per class: {_MEND}")
    records, timings = _table(path / "records.parquet"), _table(path / "timings.parquet")
    ids = [c.id for c in checked.clients]
    for column, known in (("method", list(checked.methods)), ("client", ids), ("other", ids)):
        there = records[column].dropna()
        strange = there[~there.isin(known)]
        if len(strange):
            kind = "method" if column == "method" else "client"
            what = f"{kind} {strange.iloc[0]}, which manifest.json does not know"
            raise InputError(f"{path / 'records.parquet'} speaks of {what}: {_MEND}")
    diverged = divergences(path, checked.methods)
    new = {c.id: c.joins for c in checked.clients if c.joins is not None}
    manifest["clients"] = [c for c in manifest["clients"] if not c.get("joins")]
    test_rows = {c.id: sum(c.test) for c in checked.clients}
    return Run(str(study["name"]), study, manifest, records, timings, new, test_rows, tuple(diverged))


def divergences(folder: Path, labels: Collection[str] | None = None) -> list[Divergence]:
    """The methods and seeds of a run whose training diverged, the first of each pair first.

    ``labels`` are the run's methods, where they are to be compared.

    Raises:
        InputError: the note of them cannot be read, or is of another run.
    """
    path = folder / DIVERGED
    found = _load(path, _noted) if path.exists() else []
    if unknown := [d.method for d in found if labels is not None and d.method not in labels]:
        raise InputError(f"{path} speaks of method {unknown[0]}, which is not in this run: {_MEND}")
    return found


def _noted(file: Path) -> list[Divergence]:
    notes = read_json(file)
    if isinstance(notes, list) and notes and isinstance(notes[-1], dict):
        notes[-1].pop("seal", None)
    return _DIVERGENCES.validate_python(notes)


_DIVERGENCES = pydantic.TypeAdapter(list[Divergence])
_MEND = "restore the file, or run the study again into a new folder"


def settings(study: Mapping[str, Any]) -> dict[str, Any]:
    """Of a study as written, what a manifest notes: all but where the data are and how often a state is kept."""
    return {k: v for k, v in study.items() if k not in ("data_dir", "checkpoint_every")}


def edited(study: Mapping[str, Any], manifest: Mapping[str, Any]) -> str | None:
    """What has been changed in a study as written since its run began; None where nothing has, or nobody noted it."""
    if not isinstance(began := manifest.get("study"), dict):
        return None
    now = settings(study)
    key = next((k for k in began | now if began.get(k) != now.get(k)), None)
    return key and f"{key}: {brief(began.get(key))} then, {brief(now.get(key))} now"


def _load(file: Path, parse: Callable[[Path], Any]) -> Any:
    if not file.exists():
        raise InputError(f"{file} is missing: give the folder of a run that has begun, or {_MEND}")
    try:
        return parse(file)
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        reason = " ".join(str(error).split())[:120]
        raise InputError(f"{file} cannot be read ({reason}): {_MEND}") from None


def _table(file: Path) -> pd.DataFrame:
    columns = _KEYS[file.name]

    def parse(file: Path) -> pa.Table:
        return renamed(pq.read_table(io.BytesIO(files.read(file)))).replace_schema_metadata(None)

    table = _load(file, parse)
    if missing := [c for c in columns if c not in table.column_names]:
        raise InputError(f"{file} has no column {missing[0]!r}: {_MEND}")
    try:
        types = {c: _TYPES.get(c, "int64") for c in columns}
        frame: pd.DataFrame = table.select(columns).to_pandas().astype(types)
    except (ValueError, TypeError, pa.ArrowException):
        raise InputError(f"{file} has a column of the wrong type (columns: {', '.join(columns)}): {_MEND}") from None
    twice = frame.duplicated([c for c in columns if c not in ("value", "seconds")])
    if twice.any():
        first = ", ".join(f"{c} {frame[c].iloc[int(twice.argmax())]}" for c in columns[:3])
        raise InputError(f"{file} has {twice.sum()} lines twice (the first: {first}): {_MEND}")
    if "metric" in frame:
        share = frame["value"][frame["metric"].isin(_SHARES)]
        if (odd := share[(share < 0) | (share > 1)]).size:
            metric = frame["metric"][odd.index[0]]
            raise InputError(f"{file} has an {metric} of {odd.iloc[0]}, which is no share of 0 to 1: {_MEND}")
    return frame
