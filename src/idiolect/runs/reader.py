"""A run folder, read and checked, as a ``Run``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from pathlib import Path
from typing import Any, Concatenate, Literal, NamedTuple, ParamSpec, TypeVar

import numpy as np
import pandas as pd
import pydantic

from idiolect.core.documents import read_json, read_yaml
from idiolect.core.errors import InputError, brief
from idiolect.core.evaluation_protocol import Protocol
from idiolect.core.objectives import OBJECTIVES, Score, TaskName
from idiolect.core.reports import Report, from_json
from idiolect.runs.early_stopping import Stop, stops, validation_means
from idiolect.runs.environment import starts
from idiolect.runs.folder import DIVERGED_FILE, MANIFEST_FILE, RECORDS_FILE, STUDY_FILE
from idiolect.runs.loading import FIX, load, look, tables

_Value = TypeVar("_Value")
_More = ParamSpec("_More")
Part = Literal["test", "validation"]
_STUDY = ("name", "dataset", "partition", "rounds", "clients", "seeds", "precision", "protocol")


def part_of(metric: str) -> Part:
    """The samples that a metric is of."""
    return "validation" if metric.startswith("validation_") else "test"


class Divergence(NamedTuple):
    """The training of a method with a seed that reached a number that is not finite."""

    method: str
    """Its label."""
    seed: int
    round: int
    """The round in which this happened; the rounds before are on disk."""
    said: str
    """Which number of which client, and what to do about it."""


def once(make: Callable[Concatenate[Run, _More], _Value]) -> Callable[Concatenate[Run, _More], _Value]:
    """A function that is computed once for each run. Nothing may write into what it returns."""

    @wraps(make)
    def cached(run: Run, /, *more: _More.args, **named: _More.kwargs) -> _Value:
        cache: dict[Any, _Value] = vars(run).setdefault("_kept", {})
        key = make, more, tuple(named.items())
        if key not in cache:
            cache[key] = make(run, *more, **named)
        return cache[key]

    return cached


@dataclass(frozen=True)
class Run:
    """The content of a run folder.

    Attributes:
        name: the study's name.
        study: the study as written, a mapping.
        manifest: data set, classes, clients with their class counts and shifts, methods by label; a new client without
            further conditions.
        records: one row per (method, seed, round, client, stage, metric, other) with its value; ``other`` is the second
            client for a value between two clients, else missing.
        timings: one row per (method, seed, round) with its seconds.
        new_clients: by the number of a new client, what else was done to its samples: "" for nothing.
        test_rows: by client number, also under further conditions, the number of its test samples.
        stopped: the methods' labels and the seeds whose training stopped early, because of the study's ``patience``.
        diverged: the methods and seeds whose training diverged. If one seed of a method diverged, the method has no
            final results, because the mean of the other seeds would be too good.
        folder: where it was read from.
    """

    name: str
    study: dict[str, Any]
    manifest: dict[str, Any]
    records: pd.DataFrame
    timings: pd.DataFrame
    new_clients: dict[int, str] = field(default_factory=dict)
    test_rows: dict[int, int] = field(default_factory=dict)
    diverged: tuple[Divergence, ...] = ()
    stopped: dict[tuple[str, int], Stop] = field(default_factory=dict)
    folder: Path | None = None

    @cached_property
    def titles(self) -> dict[str, str]:
        """The title of each method, by label, in the study's order; methods with equal titles also show their label."""
        methods = {label: str(m["title"]) for label, m in self.manifest["methods"].items()}
        often = Counter(methods.values())
        return {label: title if often[title] == 1 else f"{title} ({label})" for label, title in methods.items()}

    @cached_property
    def shifts(self) -> dict[int, str]:
        """The shift of each client, by id; "" if there is none."""
        return {c["id"]: c["shift"] for c in self.manifest["clients"]}

    @cached_property
    def attackers(self) -> dict[int, str]:
        """The attacks of hostile clients, by client. Their accuracy is recorded, and no result counts it."""
        return {int(client): str(attack) for client, attack in self.manifest.get("attackers", {}).items()}

    @cached_property
    def reports(self) -> dict[str, dict[str, Report]]:
        """What each method wants drawn, by label and metric."""
        return {label: from_json(m["reports"]) for label, m in self.manifest["methods"].items()}

    @cached_property
    def protocol(self) -> Protocol:
        """What the run's numbers mean."""
        return Protocol.model_validate(self.study["protocol"])

    @cached_property
    def part(self) -> Part:
        """The samples that the results are of: validation samples in a run in which no client has test samples."""
        clients = self.manifest["clients"]
        return "validation" if any(_count(c, "validation") for c in clients) and not self._tested else "test"

    @cached_property
    def _tested(self) -> bool:
        return any(_count(c, "test") for c in self.manifest["clients"])

    @property
    def task(self) -> TaskName:
        """What is learnt."""
        task: TaskName = self.manifest.get("task", "classification")
        return task

    @property
    def score(self) -> Score:
        """The number by which methods are judged."""
        return OBJECTIVES[self.task].score

    def metric_of(self, part: Part) -> str:
        """The score of test or of validation samples, as it is recorded."""
        return self.score.metric if part == "test" else self.score.validation

    @property
    def metric(self) -> str:
        """The score that the results are, as ``accuracy`` or ``validation_accuracy``."""
        return self.metric_of(self.part)

    @property
    def proportions(self) -> tuple[str, ...]:
        """The metrics among ``metric_of`` that are proportions of samples."""
        return ("accuracy", "validation_accuracy") if self.task == "classification" else ()

    @property
    def of_new_clients(self) -> bool:
        """Whether the results are those of new clients, which have no validation samples."""
        return self.protocol.clients == "new" and self.part == "test"

    @cached_property
    def sizes(self) -> dict[int, int]:
        """By client number, how many samples its result is of."""
        return self.sizes_of(self.part)

    def sizes_of(self, part: Part) -> dict[int, int]:
        """By client number, how many test or validation samples it has."""
        if part == "test":
            return self.test_rows
        return {c["id"]: _count(c, "validation") for c in self.manifest["clients"]}

    def said(self, clients: str = "") -> str:
        """What the results are, in words; see ``Protocol.said``."""
        return self.protocol.said(clients, self.part)

    @cached_property
    def precision(self) -> str:
        """Of the networks' products, as the study says, or the engine: ``float32``, ``bf16``, ``tf32 and float32``."""
        each: list[dict[str, Any]] = []
        with suppress(InputError):  # a broken note
            each = starts(self.folder) if self.folder else []
        kinds = {str(start["options"].get("precision", self.study["precision"])) for start in each}
        return " and ".join(sorted(kinds, reverse=True)) or str(self.study["precision"])

    @cached_property
    def scores(self) -> pd.DataFrame:
        """The score of clients at the protocol's stage, in every evaluated round: an accuracy is 0..1.

        A client without test samples has none. If no client has any, it is that of validation samples.
        """
        return self.of_protocol(self.metric)

    @cached_property
    def final(self) -> pd.DataFrame:
        """The score of the protocol's clients, in the protocol's round of each method and seed."""
        return self.last_of(self.metric)

    def of_protocol(self, metric: str) -> pd.DataFrame:
        """A metric of samples of honest clients at the protocol's stage, in every evaluated round.

        Metrics of validation samples are those of clients that train, also where the protocol is about new clients.
        """
        part, stage = part_of(metric), str(self.protocol.stage)
        clients = [c["id"] for c in self.manifest["clients"] if _count(c, part)]
        if self.protocol.clients == "new" and part == "test":
            stage, clients = "new", [c for c in clients if c in self.new_clients]
        records = self.select(stage, metric)
        return records[records["client"].isin([c for c in clients if c not in self.attackers])]

    @once
    def last_of(self, metric: str) -> pd.DataFrame:
        """The same in the protocol's round: the last of each method and seed, or the best on validation samples.

        The best round is the evaluated one with the best mean score on validation samples, averaged as the protocol
        says, the earliest of equal ones. The last round is that of the score: no older value takes the place of one
        that is not defined in it. Methods that diverged are left out.
        """
        records = self.settled(self.of_protocol(metric))
        if self.protocol.round == "last":
            ends = self.scores.groupby(["method", "seed"])["round"].max()
            return self._in_rounds(records, set(zip(ends.index, ends, strict=True)))
        return self._in_rounds(records, set(self.best_rounds.items()))

    @cached_property
    def best_rounds(self) -> dict[tuple[str, int], int]:
        """By method and seed, the evaluated round with the best mean on validation samples, the earliest of equals."""
        best = (self.score.sign * self.validation_means).groupby(["method", "seed"]).idxmax()
        return {(str(method), int(seed)): int(number) for method, seed, number in best}

    @cached_property
    def validation_means(self) -> pd.Series[float]:
        """The mean score on validation samples that the protocol asks for, by method, seed and evaluated round."""
        sizes = {c: n for c, n in self.sizes_of("validation").items() if c not in self.attackers}
        by = ("method", "seed", "round")
        return validation_means(self.records, self.protocol, sizes, by, self.score.validation)

    @staticmethod
    def _in_rounds(records: pd.DataFrame, ends: set[tuple[tuple[str, int], int]]) -> pd.DataFrame:
        rows = zip(zip(records["method"], records["seed"], strict=True), records["round"], strict=True)
        return records[np.fromiter((row in ends for row in rows), bool, len(records))]

    def select(self, stage: str, metric: str) -> pd.DataFrame:
        """The records of one metric that have a value."""
        r = self.records
        return r[(r["stage"] == stage) & (r["metric"] == metric) & r["value"].notna()]

    def settled(self, records: pd.DataFrame) -> pd.DataFrame:
        """Those of methods that did not diverge with any seed."""
        return records[~records["method"].isin([d.method for d in self.diverged])]

    def find(self, name: str) -> str | None:
        """The label with which a method ran: its name without options if there is one, else the first with options."""
        labels = [label for label, m in self.manifest["methods"].items() if m["name"] == name]
        return name if name in labels else next(iter(labels), None)


def _count(client: Mapping[str, Any], part: str) -> int:
    """How many samples of a part a client of the manifest has."""
    return sum(client.get(part, ()))


def last(frame: pd.DataFrame, *by: str) -> pd.DataFrame:
    """The rows of the last round of each group."""
    return frame[frame["round"] == frame.groupby(list(by))["round"].transform("max")]


class _Client(pydantic.BaseModel):
    id: int
    train: list[int]
    test: list[int]
    validation: list[int] = []
    shift: str
    name: str = ""
    joins: str | None = None


class _Method(pydantic.BaseModel):
    name: str
    title: str
    summary: str
    reports: dict[str, Report]


class _Manifest(pydantic.BaseModel):
    study: dict[str, Any]
    dataset: str
    class_names: list[str]
    task: TaskName = "classification"
    clients: list[_Client] = pydantic.Field(min_length=1)
    methods: dict[str, _Method] = pydantic.Field(min_length=1)


def read(path: Path | str) -> Run:
    """Read the folder of a run that has ended or is still running.

    Raises:
        InputError: the folder or one of its four files is missing, broken or from another run.
    """
    path = Path(path)
    look(path)
    study = load(path / STUDY_FILE, read_yaml)
    if not isinstance(study, dict) or (missing := [k for k in _STUDY if k not in study]):
        what = f"has no {missing[0]!r}" if isinstance(study, dict) else "is not a mapping"
        raise InputError(f"{path / STUDY_FILE} {what}: {FIX}")
    if not isinstance(study["rounds"], int):
        raise InputError(f"{path / STUDY_FILE} has rounds: {study['rounds']!r}, which is not a whole number: {FIX}")
    try:
        Protocol.model_validate(study["protocol"])
    except pydantic.ValidationError as error:
        reason = error.errors()[0]["msg"].lower()
        raise InputError(f"{path / STUDY_FILE} has a protocol that cannot be read ({reason}): {FIX}") from None
    manifest = load(path / MANIFEST_FILE, read_json)
    try:
        content = _Manifest.model_validate(manifest)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(step) for step in first["loc"]) or "content"
        raise InputError(f"{path / MANIFEST_FILE}: {where}: {first['msg'].lower()}: {FIX}") from None
    if edit := edited(study, manifest):
        raise InputError(f"{path / STUDY_FILE} has changed since the run began ({edit}): undo this change")
    for client in content.clients:
        counts = (client.train, client.test, client.validation or client.train)
        if any(len(count) != len(content.class_names) for count in counts):
            raise InputError(
                f"{path / MANIFEST_FILE}: client {client.id} does not have one count for each class: {FIX}"
            )
    records, timings = tables(path)
    ids = [c.id for c in content.clients]
    for column, known in (("method", list(content.methods)), ("client", ids), ("other", ids)):
        there = records[column].dropna()
        strange = there[~there.isin(known)]
        if len(strange):
            kind = "method" if column == "method" else "client"
            what = f"{kind} {strange.iloc[0]}, which is not in {MANIFEST_FILE}"
            raise InputError(f"{path / RECORDS_FILE} has {what}: {FIX}")
    diverged = divergences(path, content.methods)
    new = {c.id: c.joins for c in content.clients if c.joins is not None}
    manifest["clients"] = [c for c in manifest["clients"] if not c.get("joins")]
    test_rows = {c.id: sum(c.test) for c in content.clients}
    run = Run(
        str(study["name"]), study, manifest, records, timings, new, test_rows, tuple(diverged), folder=path
    )  # fmt: skip
    stopped = {}
    if study.get("patience"):
        stopped = stops(run.score.sign * run.validation_means, int(study["patience"]), study["rounds"])
    return replace(run, stopped={cell: stop for cell, stop in stopped.items() if cell not in {d[:2] for d in diverged}})


def divergences(folder: Path, labels: Collection[str] | None = None) -> list[Divergence]:
    """The methods and seeds of a run whose training diverged, the first of each pair first.

    ``labels`` are the run's methods, if they are to be checked.

    Raises:
        InputError: the file cannot be read, or is from another run.
    """
    path = folder / DIVERGED_FILE
    notes = load(path, _notes) if path.exists() else []
    if unknown := [d.method for d in notes if labels is not None and d.method not in labels]:
        raise InputError(f"{path} has method {unknown[0]}, which is not in this run: {FIX}")
    return notes


def _notes(file: Path) -> list[Divergence]:
    notes = read_json(file)
    if isinstance(notes, list) and notes and isinstance(notes[-1], dict):
        notes[-1].pop("seal", None)
    return _DIVERGENCES.validate_python(notes)


_DIVERGENCES = pydantic.TypeAdapter(list[Divergence])


def settings(study: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a written study that a manifest has: all but the data folder and the interval of checkpoints."""
    return {k: v for k, v in study.items() if k not in ("data_dir", "checkpoint_every")}


def edited(study: Mapping[str, Any], manifest: Mapping[str, Any]) -> str | None:
    """What has changed in a written study since its run began; None if nothing has."""
    before, now = manifest["study"], settings(study)
    key = next((k for k in before | now if before.get(k) != now.get(k)), None)
    return key and f"{key}: {brief(before.get(key))} then, {brief(now.get(key))} now"
