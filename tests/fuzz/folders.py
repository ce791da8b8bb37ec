"""Run folders, finished and half finished, whose files were damaged, removed, replaced or edited."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from damage import TEXTS, damage, edited, replaced
from damage import files as regular
from harness import Case

STUDY = """
data: t.csv
client_column: site
methods: fedavg,ditto
rounds: 2
local_epochs: 1
checkpoint_every: 1
"""
_GOING = ["--engine", "sequential", "--quiet"]
_NUMBERS = ["method", "seed", "round", "client", "stage", "metric", "value", "other"]


def prepare(place: Path, entry: Callable[[list[str]], object]) -> None:
    """A finished run, one that was stopped half-way, and a finished one of another study, in ``place``."""
    from settings import prepare as small

    place.mkdir()
    small(place)
    (place / "mine.yaml").write_text(STUDY)
    before = os.getcwd()
    os.chdir(place)
    try:
        diverges = ["--methods", "fedavg,ditto:pull=1e30"]
        for name, more in (("whole", []), ("other", ["--lr", "0.5", "--seeds", "3"]), ("diverged", diverges)):
            _quietly(entry, ["run", "mine.yaml", *more, *_GOING, "--out", name], 1 if name == "diverged" else 0)
        for name in ("whole", "diverged"):
            _quietly(entry, ["report", name, "--export", "csv"])
        _quietly(entry, ["diff", "whole", "other"])
        _quietly(entry, ["report", "whole", "--compare", "fedavg,ditto"])
        _halve(place)
    finally:
        os.chdir(before)


def _quietly(entry: Callable[[list[str]], object], arguments: list[str], code: int = 0) -> None:
    with contextlib.redirect_stdout(io.StringIO()) as said:
        try:
            entry(arguments)
        except SystemExit as end:
            if end.code != code:
                raise RuntimeError(f"{arguments}: {end.code}: {said.getvalue()}") from None


def _halve(place: Path) -> None:
    """The same run as a signal leaves it: one method done, the other after its first round."""
    from idiolect.core.errors import Interrupted
    from idiolect.studies import Study, run
    from idiolect.studies.progress import Watcher

    study = Study.read("whole/study.yaml")
    half = place / "half"

    class Impatient(Watcher):
        def advance(self, label: str, *more: Any, **others: Any) -> None:
            if label == "ditto":  # whose first round is on disk
                raise KeyboardInterrupt

    with contextlib.suppress(Interrupted, KeyboardInterrupt):
        run(study, half, engine="sequential", watcher=Impatient())
    if (half / "report.html").exists() or len(list(half.glob("cells/*/checkpoint.safetensors"))) < 2:
        raise RuntimeError("the run was not stopped half-way")


def case(rng: random.Random, here: Path, place: Path) -> Case:
    """One case: a damaged run folder and a command on it."""
    which = rng.choice(("whole", "whole", "half", "half", "diverged"))
    undisturbed = place / ("diverged" if which == "diverged" else "whole")
    shutil.copytree(place / which, here / "r")
    for name in ("t.csv", "evil.py"):
        shutil.copyfile(place / name, here / name)
    what = [which]
    for _ in range(rng.choice((0, 1, 1, 1, 1, 1, 2))):
        found = [p for p in regular(here / "r") if p.name != "report.html" and p.suffix != ".csv"]
        if not found:
            break
        path = rng.choice(found)
        ways = [damage, damage, damage, _exchange, *[_EDITS.get(path.suffix, damage)] * 2]
        what.append(rng.choice(ways)(path, rng))
    if rng.random() < 0.04:
        what.append(_stray(here / "r", rng))
    encoding = rng.choice(("utf-8", "utf-8", "cp1252"))
    command = rng.choice(
        (
            "resume",
            "resume",
            "resume",
            "resume",
            "table",
            "table",
            "latex",
            "compare",
            "page",
            "diff",
            "recipe",
            "again",
        )
    )
    told = ", ".join(what)
    if command == "resume":
        arguments = ["run", "--resume", "--out", "r", *_GOING]
        return Case(
            "run folders",
            told,
            arguments,
            ("r",),
            "r",
            encoding,
            lambda root: same_numbers(root / "r", undisturbed),
        )
    if command == "again":
        return Case(
            "run folders",
            told,
            ["run", "r/study.yaml", "--rounds", "1", *_GOING, "--out", "out"],
            ("out",),
            "out",
            encoding,
        )
    if command == "table":
        check = (lambda root: same_table(root / "r", undisturbed)) if which != "half" else None
        return Case("run folders", told, ["report", "r", "--export", "csv"], ("r/table.csv",), "", encoding, check)
    if command == "latex":
        return Case(
            "run folders", told, ["report", "r", "--export", "latex", "--out", "tables"], ("tables",), "", encoding
        )
    if command == "compare":
        return Case("run folders", told, ["report", "r", "--compare", "fedavg,ditto"], (), "", encoding)
    if command == "page" and rng.random() < 0.4:
        return _elsewhere(rng, here, told)
    if command == "page":
        return Case("run folders", told, ["report", "r"], ("r/report.html",), "", encoding)
    if command == "recipe":
        return Case("run folders", told, ["diff", "r", "fedpac/table1"], (), "", encoding)
    shutil.copytree(place / "other", here / "other")
    two = ["r", "other"] if rng.random() < 0.5 else ["other", "r"]
    return Case("run folders", told, ["diff", *two, *["--json"] * (rng.random() < 0.5)], (), "", encoding)


def same_numbers(folder: Path, whole: Path) -> list[str]:
    """Whether a run has the numbers of the one that nothing disturbed."""
    mine, theirs = (pq.read_table(one / "records.parquet").select(_NUMBERS) for one in (folder, whole))
    return [] if mine.equals(theirs) else ["it ended well with other numbers"]


def same_table(folder: Path, whole: Path) -> list[str]:
    """Whether an exported table has the numbers of the run that nothing disturbed; names may be others."""

    def numbers(path: Path) -> list[list[str]]:
        lines = path.read_text(encoding="utf-8").splitlines()
        return [[cell for cell in line.split(",") if cell[:1].isdigit()] for line in lines]

    mine, theirs = (numbers(one / "table.csv") for one in (folder, whole))
    return [] if mine == theirs else ["its table has other numbers"]


def _elsewhere(rng: random.Random, here: Path, told: str) -> Case:
    """A page to be written where something is already."""
    page, kept = here / "page.html", here / "kept.html"
    kind = rng.choice(("nothing", "file", "private file", "link", "link to nothing", "FIFO", "folder"))
    kept.write_text("kept")
    if kind in ("file", "private file"):
        page.write_text("an older page")
        page.chmod(0o600 if kind == "private file" else 0o640)
    elif kind == "link":
        page.symlink_to("kept.html")
    elif kind == "link to nothing":
        page.symlink_to("nowhere/page.html")
    elif kind == "FIFO":
        os.mkfifo(page)
    elif kind == "folder":
        page.mkdir()
    before = page.lstat().st_mode if os.path.lexists(page) else None

    def check(root: Path) -> list[str]:
        after = (root / "page.html").lstat().st_mode
        return [] if before in (None, after) else [f"the mode {before:o} of page.html became {after:o}"]

    writes = ("page.html", "kept.html") if kind == "link" else ("page.html",)
    return Case(
        "run folders", f"{told}, {kind} at --out", ["report", "r", "--out", "page.html"], writes, "", check=check
    )


# --- edits


def _exchange(path: Path, rng: random.Random) -> str:
    """A file in another's place."""
    top = next(p for p in path.parents if p.name == "r")
    others = [p for p in regular(top) if p != path and p.suffix == path.suffix] + [top.parent / "t.csv"]
    return replaced(path, rng.choice(others))


def _stray(folder: Path, rng: random.Random) -> str:
    """Something in the folder that no run leaves."""
    place = rng.choice((folder, folder / "cells", folder / "cells" / "02-ditto-seed0"))
    if not place.is_dir():
        return "nothing"
    way = rng.choice(("folder", "draft", "FIFO", "link"))
    path = place / rng.choice((".records.parquet.1.tmp", "x", "table.csv", "report.html"))
    if os.path.lexists(path):
        path.unlink()
    if way == "folder":
        path.mkdir()
    elif way == "FIFO":
        os.mkfifo(path)
    elif way == "link":
        path.symlink_to("nowhere")
    else:
        path.write_bytes(b"PAR1")
    return f"{way} {path.name} in {place.name}"


def _yaml(path: Path, rng: random.Random) -> str:
    """A setting of the study edited by hand."""
    try:
        study = yaml.safe_load(path.read_text())
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return "nothing"
    if not isinstance(study, dict) or not study:
        return "nothing"
    key = rng.choice(sorted(study, key=str))
    value = rng.choice((*TEXTS, None, [], {}, 0, -1, 0.5, True, [[]], {"name": "x"}, 3, "evil.net"))
    if rng.random() < 0.3:
        key, value = rng.choice(
            (
                ("lr", 0.02), ("rounds", 3), ("rounds", 1), ("seeds", [1]), ("model", "evil.net"), ("data", "evil.net"),
                ("data", "nothing.csv"), ("name", "\x1b[31mred"), ("name", "another"), ("momentum", 0.25),
                ("checkpoint_every", 1), ("methods", study.get("methods", [])[:1]), ("partition", "evil.net"),
                ("protocol", {"stage": "received"}), ("clients", 3), ("batch_size", 10**9),
            )
        )  # fmt: skip
    if rng.random() < 0.15:
        del study[key]
        value = "gone"
    else:
        study[key] = value
    try:
        path.write_text(yaml.safe_dump(study, sort_keys=False), encoding="utf-8", errors="surrogatepass")
    except yaml.YAMLError:
        return "nothing"
    return f"{path.name}: {key} is {str(value)[:40]!r}"


def _json(path: Path, rng: random.Random) -> str:
    """A JSON file with another value somewhere inside."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return "nothing"
    value = rng.choice(
        (
            None,
            [],
            {},
            1,
            -1,
            2.5,
            "x",
            "\x1b[31mred",
            "\ud800",
            [1, 2],
            True,
            10**30,
            "<script>",
            "é",
            float("nan"),
            1e300,
        )
    )
    place, step = content, "all"
    while isinstance(place, dict | list) and place and rng.random() < 0.8:
        inner = rng.choice(sorted(place) if isinstance(place, dict) else range(len(place)))
        if not isinstance(place[inner], dict | list) or not place[inner] or rng.random() < 0.4:
            step = str(inner)
            if rng.random() < 0.3:
                del place[inner]
            else:
                place[inner] = value
            break
        place = place[inner]
    else:
        content = value
    path.write_text(json.dumps(content))
    return f"{path.name}: {step} is {value!r}"


def _parquet(path: Path, rng: random.Random) -> str:
    """A table with other columns, types, rows or values."""
    try:
        table = pq.read_table(path)
    except Exception:  # noqa: BLE001  it was damaged before
        return "nothing"
    if not table.num_columns or not len(table):
        return "nothing"
    name = rng.choice(table.column_names)
    at = table.column_names.index(name)
    what = rng.choice(
        ("gone", "text", "null", "inf", "twice", "none", "huge", "other", "extra", "order", "list", "one less")
    )
    column = table.column(name)
    if what == "gone":
        table = table.drop_columns([name])
    elif what == "text":
        table = table.set_column(at, name, [pa.array(["\x1b[31mé"] * len(table))])
    elif what == "null":
        table = table.set_column(at, name, [pa.nulls(len(table), column.type)])
    elif what == "list":
        table = table.set_column(at, name, [[[1]] * len(table)])
    elif what in ("inf", "huge"):
        value = rng.choice((float("inf"), float("nan"), 1e308, -1.0, 2.0)) if what == "inf" else 2.0**40
        table = table.set_column(at, name, [pa.array([value] * len(table))])
    elif what == "twice":
        table = pa.concat_tables([table, table])
    elif what == "none":
        table = table[:0]
    elif what == "one less":
        table = table[:-1]
    elif what == "other" and not pa.types.is_string(column.type):
        values = column.to_pylist()
        values[rng.randrange(len(values))] += 1
        table = table.set_column(at, name, [pa.array(values, column.type)])
    elif what == "extra":
        table = table.append_column(rng.choice(("x", name)), [pa.nulls(len(table))])
    else:
        table = table.take(pa.array(list(reversed(range(len(table))))))
    pq.write_table(table, path)
    return f"{path.parent.name}/{path.name}: {name} {what}"


def _tensors(path: Path, rng: random.Random) -> str:
    """A checkpoint whose head, or numbers, are others."""
    content = path.read_bytes()
    if len(content) < 16:
        return "nothing"
    size = int.from_bytes(content[:8], "little")
    if size > len(content):
        return "nothing"
    head, body = content[8 : 8 + size].decode("utf-8", "replace"), content[8 + size :]
    way = rng.choice(("round", "length", "slip", "numbers", "nan"))
    if way == "round":
        head = head.replace(
            '"round":"2"', rng.choice(('"round":"1"', '"round":"9"', '"round":"-1"', '"round":"x"', '"rounds":"2"'))
        )
    elif way == "slip":
        head = edited(head, rng)
    elif way == "numbers":
        body = rng.randbytes(len(body))
    elif way == "nan":
        body = b"\xff" * len(body)
    raw = head.encode("utf-8", "replace")
    count = rng.choice((0, 2**63, len(raw) + 1, 2**40)) if way == "length" else len(raw)
    path.write_bytes(count.to_bytes(8, "little") + raw + body)
    return f"{path.parent.name}/{path.name}: {way}"


_EDITS: dict[str, Callable[[Path, random.Random], str]] = {
    ".yaml": _yaml, ".json": _json, ".parquet": _parquet, ".safetensors": _tensors,
}  # fmt: skip
