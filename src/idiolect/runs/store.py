"""A run's folder: the study, the manifest, and for each method and seed a cell with its records and checkpoint."""

from __future__ import annotations

import io
import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from idiolect.core import files
from idiolect.core.documents import parse_yaml, read_json, read_yaml, sealed_json
from idiolect.core.errors import InputError, RunError, listed, option
from idiolect.core.option_spec import Spec
from idiolect.runs import environment
from idiolect.runs.checkpoint import load, save
from idiolect.runs.folder import (
    CHECKPOINT_FILE,
    DIVERGED_FILE,
    ENGINE_FILE,
    MANIFEST_FILE,
    RECORDS_FILE,
    STUDY_FILE,
    TIMINGS_FILE,
    cell_folder,
    elsewhere,
    files_of_cells,
    has_run,
    hold,
    holds_something,
    new_folder,
)  # fmt: skip
from idiolect.runs.reader import Divergence, divergences, edited, settings
from idiolect.runs.schema import RECORDS, TIMINGS, StudyFile, read_table
from idiolect.simulation import Record, State

log = logging.getLogger(__name__)

S = TypeVar("S", bound=StudyFile)


class CellStore:
    """One method with one seed: its records, and its state on disk."""

    def __init__(self, folder: Path, study: str, label: str, seed: int) -> None:
        self.folder = folder
        self._about = {"study": study, "method": label, "seed": seed}
        self._records, self._timings = RECORDS.empty_table(), TIMINGS.empty_table()
        self._new: list[Record] = []
        self._seconds: list[float] = []

    @property
    def records(self) -> pa.Table:
        """Those on disk, of the rounds up to the state that was loaded."""
        return self._records

    def add(self, records: list[Record], seconds: float) -> None:
        """Add one round's records and its seconds."""
        self._new += records
        self._seconds.append(seconds)

    def save(self, state: State) -> None:
        """Write everything so far to disk. The checkpoint is last: ``load`` drops records of later rounds."""
        values = zip(*self._new, strict=True) if self._new else ([] for _ in Record._fields)
        self._records = self._joined(self._records, dict(zip(Record._fields, values, strict=True)))
        rounds = range(state.round - len(self._seconds) + 1, state.round + 1)
        self._timings = self._joined(self._timings, {"round": rounds, "seconds": self._seconds})
        self._new, self._seconds = [], []
        _write(self.folder / RECORDS_FILE, self._records)
        _write(self.folder / TIMINGS_FILE, self._timings)
        save(state, self.folder / CHECKPOINT_FILE)

    def _joined(self, old: pa.Table, columns: dict[str, Any]) -> pa.Table:
        count = len(columns["round"])
        about = {k: [v] * count for k, v in self._about.items() if k in old.schema.names}
        return pa.concat_tables([old, pa.table({**about, **columns}, schema=old.schema)])

    def read(self, name: str, schema: pa.Schema) -> pa.Table:
        """One of its tables.

        Raises:
            InputError: it cannot be read, or is from another cell.
        """
        table = _read(self.folder / name, schema)
        for column in ("method", "seed"):
            if strange := [v for v in pc.unique(table[column]).to_pylist() if v != self._about[column]]:
                raise InputError(
                    f"{self.folder / name} is from another cell ({column} {strange[0]}): restore it, or delete its "
                    "folder to run this part again"
                )
        return table

    def load(self, start: State) -> State:
        """The state last saved, or ``start``; records and times of later rounds are dropped."""
        path = self.folder / CHECKPOINT_FILE
        if not path.exists():
            return start
        state = load(path, start)
        until = pc.field("round") <= state.round
        self._records = self.read(RECORDS_FILE, RECORDS).filter(until)
        self._timings = self.read(TIMINGS_FILE, TIMINGS).filter(until)
        return state


def renew(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write what is now known of the data into the manifest of the run in a folder, if there is one.

    Raises:
        InputError: the manifest cannot be read.
        RunError: the disk is full or the folder cannot be written.
    """
    path = folder / MANIFEST_FILE
    if not path.exists():
        return
    try:
        before = read_json(path)
        if before["hash"] != manifest["hash"]:
            files.write(path, sealed_json(before | manifest | {"dataset": before["dataset"]}))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} cannot be read ({error}): restore it, or choose another folder") from None


class Store(Generic[S]):
    """The folder of one run, started or resumed; ``folder`` None takes a new one in ``runs``.

    Raises:
        InputError: the folder exists and is not to be resumed, has another study, other data or no run, or another
            process uses it.
        RunError: the disk is full or the folder cannot be written.
    """

    def __init__(self, folder: Path | None, study: S, manifest: dict[str, Any], *, resume: bool) -> None:
        self.folder, self.study = folder or new_folder(study.name), study
        self.diverged: list[Divergence] = []
        self._release = hold(self.folder)  # before reading and writing, so that two processes do not start at once
        try:
            if resume and has_run(self.folder):
                self._resume(manifest)
            elif holds_something(self.folder):
                if resume:
                    raise InputError(f"{self.folder} has no run: {elsewhere()}")
                raise InputError(
                    f"{self.folder} exists: {elsewhere()}, or continue the run in it with {option('resume', True)}"
                )
            else:
                self._begin(manifest)
        except BaseException:
            self.close()
            raise

    def _begin(self, manifest: dict[str, Any]) -> None:
        """Write the study and the versions of libraries."""
        text = self.study.to_yaml()
        beginning = {
            "study": settings(parse_yaml(text)),
            "versions": environment.versions(),
            "machine": environment.machine(),
        }
        try:
            files.write(self.folder / MANIFEST_FILE, sealed_json(manifest | beginning))
            files.write(self.folder / STUDY_FILE, text)
        except RunError:
            with suppress(OSError):
                (self.folder / MANIFEST_FILE).unlink(missing_ok=True)
                self.folder.rmdir()
            raise

    def _resume(self, manifest: dict[str, Any]) -> None:
        """Check that the folder has the same study on the same data, and remove unfinished files."""
        self.study = self.study.model_copy(update={"name": self._same(manifest)})
        if not self._has_rounds():
            self._begin(manifest)
        self.diverged = divergences(self.folder, [u.label for u in self.study.methods])
        self._whole()  # every cell must be readable before one of them continues
        environment.starts(self.folder)  # and so must the note of engines and machines
        for draft in self.folder.rglob(files.DRAFT):
            with suppress(OSError):
                draft.unlink()

    def close(self) -> None:
        """Let another process use the folder."""
        self._release()

    def _same(self, manifest: dict[str, Any]) -> str:
        """The name of the study in the folder, which must compute the same as this one, now and when it began."""
        text, path = self.folder / STUDY_FILE, self.folder / MANIFEST_FILE
        there = type(self.study).look(text)
        try:
            beginning = read_json(path)
            same = beginning["hash"] == manifest["hash"]
            edit = edited(read_yaml(text), beginning)
            circumstances = {**beginning["versions"], "machine": beginning["machine"]}
            code = {label: about["code"] for label, about in beginning["methods"].items()}
            code |= {"the network": beginning["network"]} if "network" in beginning else {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            reason = f" ({error})" if type(error) is ValueError else ""
            raise InputError(
                f"{path} is missing or broken{reason}: restore it, or run the study into another folder"
            ) from None
        if edit:
            raise InputError(f"{text} has changed since the run began ({edit}): undo this change, or {elsewhere()}")
        if differs := difference(settings_of_numbers(there), settings_of_numbers(self.study)):
            raise InputError(
                f"{self.folder} has another study ({differs}): {elsewhere()}, or resume with the same settings"
            )
        if beginning.get("frozen", "") != manifest.get("frozen", ""):
            raise InputError(
                f"the frozen weights of the network have changed since the run in {self.folder} began: use the weights "
                f"of that time, or {elsewhere()}"
            )
        if not same:
            raise InputError(f"the data have changed since the run in {self.folder} began: {elsewhere()}")
        if self._has_rounds():
            self._other_versions(circumstances)
            self._other_code(code, manifest)
        return there.name

    def _has_rounds(self) -> bool:
        """Whether anything was trained: if not, a resumed run begins as a new one."""
        cells = self.folder.glob(f"*/*/{CHECKPOINT_FILE}")
        return (self.folder / DIVERGED_FILE).exists() or next(cells, None) is not None

    def _other_versions(self, beginning: Mapping[str, Any]) -> None:
        """Warn if earlier rounds were computed with other versions or on another machine; ``engine.json`` lists all."""
        now = {**environment.versions(), "machine": environment.machine()}
        before: dict[str, list[str]] = {name: [] for name in now}
        with suppress(InputError):  # a broken note
            for circumstances in (
                beginning,
                *({**start["versions"], "machine": start["machine"]} for start in environment.starts(self.folder)),
            ):
                for name, others in before.items():
                    if circumstances.get(name) not in (None, now[name], *others):
                        others.append(str(circumstances[name]))
        if other := [f"{name} {' and '.join(others)}, now {now[name]}" for name, others in before.items() if others]:
            log.warning(
                "%s was started with %s: its other rounds may differ in rounding from a run without a break; see %s",
                self.folder, "; ".join(other), ENGINE_FILE,
            )  # fmt: skip

    def _other_code(self, before: Mapping[str, str], manifest: Mapping[str, Any]) -> None:
        """Warn if a method's file, or that of a network of one's own, has changed since the run began."""
        now = {label: about["code"] for label, about in manifest["methods"].items()}
        now |= {"the network": manifest["network"]} if "the network" in before and "network" in manifest else {}
        if labels := [label for label, code in now.items() if before.get(label) != code]:
            log.warning(
                "the code of %s has changed since %s began, whose rounds would be of two versions: if it now computes "
                "something else, start a new run", listed(labels, 5), self.folder,
            )  # fmt: skip

    def cell(self, label: str, seed: int) -> CellStore:
        """The cell of a method and a seed."""
        labels = [u.label for u in self.study.methods]
        return CellStore(cell_folder(self.folder, labels, label, seed), self.study.name, label, seed)

    def diverge(self, divergence: Divergence) -> None:
        """Write that a method's training with a seed diverged; it is not run again as long as this file says so."""
        order = [u.label for u in self.study.methods]
        self.diverged = sorted([*self.diverged, divergence], key=lambda d: (order.index(d.method), d.seed))
        notes = [d._asdict() for d in self.diverged]
        files.write(self.folder / DIVERGED_FILE, sealed_json(notes))

    def add_start(self, start: dict[str, Any]) -> None:
        """Write which engine and machine ran the study, or the rest of it."""
        before: list[dict[str, Any]] = []
        with suppress(InputError):  # a broken file is no reason to lose this entry
            before = environment.starts(self.folder)
        files.write(self.folder / ENGINE_FILE, sealed_json([*before, start]))

    def merge(self) -> None:
        """Join the cells' records into the run's, in the order of the study.

        Raises:
            InputError: a cell has lost its records, and the run's may be the last copy: nothing is written.
            RunError: the disk is full or the folder cannot be written.
        """
        for name, table in self._whole().items():
            _write(self.folder / name, table)

    def _whole(self) -> dict[str, pa.Table]:
        """The cells' tables, joined, by the names of their files; no time without its records."""
        cells = [self.cell(u.label, seed) for u in self.study.methods for seed in self.study.seeds]
        tables: dict[str, pa.Table] = {}
        for name, schema in ((TIMINGS_FILE, TIMINGS), (RECORDS_FILE, RECORDS)):
            with_files = [c for c in cells if (c.folder / name).exists() or (c.folder / CHECKPOINT_FILE).exists()]
            tables[name] = pa.concat_tables([schema.empty_table(), *(c.read(name, schema) for c in with_files)])
        return {name: tables[name] for name in (RECORDS_FILE, TIMINGS_FILE)}


def joined_rounds(folder: Path) -> int:
    """The last round of a run whose records have been joined, with the times last; 0 if none can be read."""
    path = folder / TIMINGS_FILE
    try:
        return int(pc.max(_read(path, TIMINGS)["round"]).as_py() or 0) if path.exists() else 0
    except InputError:
        return 0


def seconds_of_rounds(folder: Path) -> list[float]:
    """The seconds of the rounds that a run has on disk.

    Raises:
        InputError: they are missing or cannot be read.
    """
    seconds: list[float] = []
    for path in files_of_cells(folder, TIMINGS_FILE):
        seconds += _read(path, TIMINGS)["seconds"].to_pylist()
    if not seconds:
        raise InputError(f"{folder} has lost the times of its rounds: delete it to run this part again")
    return seconds


def settings_of_numbers(study: StudyFile) -> dict[str, Any]:
    """The settings that determine the numbers, flat: setting -> value."""
    settings = study.model_dump(exclude={"name", "data_dir", "checkpoint_every"})
    uses = settings.pop("methods")
    settings["methods"] = [u["label"] for u in uses]
    for one in uses:
        own = {f"settings.{k}" if k in one["options"] else k: v for k, v in one.get("settings", {}).items()}
        settings |= {f"{one['label']}.{k}": v for k, v in ({"name": one["name"]} | one["options"] | own).items()}
    return settings


def difference(old: dict[str, Any], new: dict[str, Any]) -> str | None:
    """The first setting that differs, with both values."""
    key = next((k for k in new | old if old.get(k) != new.get(k)), None)
    return key and f"{key}: {_brief(old.get(key))} there, {_brief(new.get(key))} here"


def text_of(value: Any) -> str:
    """A setting's value, in the form of an option."""
    if isinstance(value, Mapping) and "name" in value:
        value = Spec.model_validate(value)
    return ", ".join(map(text_of, value)) or "none" if isinstance(value, list | tuple) else str(value)


def _brief(value: Any) -> str:
    text = text_of(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _write(path: Path, table: pa.Table) -> None:
    buffer = io.BytesIO()
    whole = table.combine_chunks()  # the same bytes however often it is saved
    pq.write_table(whole.replace_schema_metadata({"seal": files.UNSEALED}), buffer)
    files.write(path, files.sealed(buffer.getvalue()))


def _read(path: Path, schema: pa.Schema) -> pa.Table:
    try:
        return read_table(path).select(schema.names).cast(schema)
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        reason = str(error).partition("\n")[0]  # and then by every column
        raise InputError(f"{path} is not readable ({reason}): delete its folder to run this part again") from error
