"""Data of one's own: tables, images, arrays and saved data sets, whole and damaged."""

from __future__ import annotations

import csv
import io
import json
import os
import random
import shutil
import struct
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from damage import HOSTILE_NAMES, TEXTS, damage, edited, spoil
from damage import files as regular
from harness import SECRET, Case, refuse
from PIL import Image

ROWS = 24


def frame() -> pd.DataFrame:
    """Two sites, three features and a label."""
    rng = np.random.default_rng(0)
    label = np.arange(ROWS) % 2
    return pd.DataFrame(
        {
            "age": np.round(rng.normal(50, 9, ROWS) + 9 * label, 2),
            "dose": np.where(np.arange(ROWS) % 7 == 0, np.nan, np.round(rng.random(ROWS), 3)),
            "sex": np.where(rng.random(ROWS) < 0.5, "f", "m"),
            "site": np.where(np.arange(ROWS) < 12, "north", "süd"),
            "label": np.where(label, "sick", "well"),
        }
    )


def _pixels(kind: int, i: int, colour: bool = False) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(1000 * kind + i)
    return (rng.integers(0, 60, (6, 5, 3) if colour else (6, 5)) + 120 * kind).astype(np.uint8)


def _csv(folder: Path) -> str:
    frame().to_csv(folder / "t.csv", index=False)
    return "t.csv"


def _semicolons(folder: Path) -> str:
    frame().to_csv(folder / "t.csv", index=False, sep=";", decimal=",", encoding="utf-8-sig")
    return "t.csv"


def _tsv(folder: Path) -> str:
    frame().to_csv(folder / "t.tsv", index=False, sep="\t")
    return "t.tsv"


def _splits(folder: Path) -> str:
    (folder / "both").mkdir()
    frame().iloc[:16].to_csv(folder / "both/train.csv", index=False)
    frame().iloc[16:].to_csv(folder / "both/test.csv", index=False)
    return "both"


def _parquet(folder: Path) -> str:
    frame().to_parquet(folder / "t.parquet")
    return "t.parquet"


def _jsonl(folder: Path) -> str:
    frame().to_json(folder / "t.jsonl", orient="records", lines=True)
    return "t.jsonl"


def _classes(folder: Path) -> str:
    for kind, name in enumerate(("cat", "dog")):
        (folder / "pictures" / name).mkdir(parents=True)
        for i in range(6):
            Image.fromarray(_pixels(kind, i)).save(folder / "pictures" / name / f"{i}.{('png', 'bmp', 'tif')[i % 3]}")
    return "pictures"


def _owners(folder: Path) -> str:
    for owner in ("ann", "bob"):
        for kind, name in enumerate(("cat", "dog")):
            (folder / "pictures" / owner / name).mkdir(parents=True)
            for i in range(4):
                path = folder / "pictures" / owner / name / f"{i}.{('jpg', 'gif', 'webp', 'png')[i]}"
                Image.fromarray(_pixels(kind, i, True)).save(path)
    return "pictures"


def _beside(folder: Path) -> str:
    (folder / "pictures").mkdir()
    lines = ["file_name,label,site"]
    for i in range(10):
        Image.fromarray(_pixels(i % 2, i)).save(folder / f"pictures/{i}.png")
        lines.append(f"{i}.png,{'cat' if i % 2 else 'dog'},{'xy'[i // 5]}")
    (folder / "pictures/metadata.csv").write_text("\n".join(lines) + "\n")
    return "pictures"


def _inside(folder: Path) -> str:
    content = []
    for i in range(10):
        held = io.BytesIO()
        Image.fromarray(_pixels(i % 2, i)).save(held, "PNG")
        content.append({"bytes": held.getvalue(), "path": f"{i}.png"})
    features = {"image": {"_type": "Image"}, "label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}
    table = pa.table({"image": content, "label": [i % 2 for i in range(10)], "site": list("xxxxxyyyyy")})
    about = {
        "huggingface": json.dumps({"info": {"features": features | {"site": {"dtype": "string", "_type": "Value"}}}})
    }
    pq.write_table(table.replace_schema_metadata(about), folder / "i.parquet")
    return "i.parquet"


def _saved(folder: Path) -> str:
    import datasets

    made = datasets.Dataset.from_pandas(frame())
    (made if folder.name < "b" else datasets.DatasetDict({"train": made, "test": made})).save_to_disk(
        str(folder / "kept")
    )
    return "kept"


def _arrays(folder: Path) -> str:
    whole = frame()
    x = whole[["age", "dose"]].fillna(0).to_numpy(np.float32)
    np.savez(folder / "rows.npz", x=x, y=(whole["label"] == "sick").to_numpy(int), clients=np.arange(ROWS) // 12)
    (folder / "rows.py").write_text(
        "import numpy as np\n\ndef given():\n    a = np.load('rows.npz')\n    return a['x'], a['y'], a['clients']\n"
    )
    return "rows.given"


KINDS: dict[str, tuple[Callable[[Path], str], list[str]]] = {
    "csv": (_csv, ["--client-column", "site"]),
    "semicolons": (_semicolons, ["--client-column", "site"]),
    "tsv": (_tsv, ["--client-column", "site"]),
    "splits": (_splits, ["--client-column", "site"]),
    "parquet": (_parquet, ["--client-column", "site"]),
    "jsonl": (_jsonl, ["--client-column", "site"]),
    "classes": (_classes, ["--clients", "2", "--partition", "iid"]),
    "owners": (_owners, []),
    "beside": (_beside, ["--client-column", "site"]),
    "inside": (_inside, ["--client-column", "site"]),
    "saved": (_saved, ["--client-column", "site"]),
    "arrays": (_arrays, []),
}


def prepare(place: Path) -> None:
    """Every kind once; cases copy it."""
    for kind, (make, _) in KINDS.items():
        (place / kind).mkdir(parents=True)
        make(place / kind)


def case(rng: random.Random, here: Path, place: Path) -> Case:
    """One case, on a copy of one kind of ``place``."""
    if rng.random() < 0.2:
        return _python(rng)
    kind = rng.choice(list(KINDS))
    options = KINDS[kind][1]
    shutil.copytree(place / kind, here, dirs_exist_ok=True)
    Image.fromarray(_pixels(0, 0)).save(here.parent / SECRET)
    where = {
        "csv": "t.csv", "semicolons": "t.csv", "tsv": "t.tsv", "splits": "both", "parquet": "t.parquet",
        "jsonl": "t.jsonl", "inside": "i.parquet", "saved": "kept", "arrays": "rows.given",
    }.get(kind, "pictures")  # fmt: skip
    what = [kind]
    for _ in range(rng.choice((0, 1, 1, 1, 1, 2))):
        found = [p for p in regular(here) if p.suffix != ".py"]
        if not found:
            break
        path = rng.choice(found)
        ways = [damage, *_WAYS.get(path.suffix, ())] if kind != "arrays" else [spoil]  # which a user's function opens
        what.append(rng.choice(ways)(path, rng))
    if not (here / where).exists() and kind in ("csv", "parquet", "jsonl") and rng.random() < 0.8:
        where = next((os.fsdecode(p) for p in sorted(os.listdir(os.fsencode(here)))), where)
        where = where if not where.startswith("-") else f"./{where}"
    if rng.random() < 0.05:
        where = rng.choice(
            (".", "..", "/dev/zero", "/dev/stdin", "/proc/self", "patients/hospital_A", f"{where}/", "nothing.csv")
        )
    given = list(options)
    if rng.random() < 0.15:
        given += rng.choice((["--resize", rng.choice(("4", "256", "1x4096", "0", "99x256"))], ["--drop", "age+label"],
                             [
                                 "--target", rng.choice(("site", "age", "dose", "sex")),
                             ], ["--new-clients", "1"]))  # fmt: skip
    if rng.random() < 0.25:
        arguments = ["run", "--data", where, *given, "--methods", "fedavg", "--rounds", "1", "--local-epochs", "1"]
        arguments += ["--engine", "sequential", "--quiet", "--out", "out"]
        return Case("files", ", ".join(what), arguments, ("out",), "out", encoding=rng.choice(("utf-8", "cp1252")))
    encoding = rng.choice(("utf-8", "utf-8", "ascii"))
    return Case("files", ", ".join(what), ["describe", "--data", where, *given], ("runs",), encoding=encoding)


# --- what stands in a table


def _cells(path: Path, rng: random.Random) -> str:
    """A table's cells, lines or names changed."""
    if path.is_dir() or not path.is_file():
        return "nothing"
    try:
        rows = list(csv.reader(io.StringIO(path.read_text(encoding="utf-8-sig"))))
    except (UnicodeDecodeError, csv.Error):
        return "nothing"
    if not rows or not rows[0]:
        return "nothing"
    what = rng.choice(
        ("cell", "name", "column", "rows", "wide", "long", "ragged", "one row", "twice", "quote", "path", "many texts")
    )
    line, at = rng.randrange(len(rows)), rng.randrange(len(rows[0]))
    bad = rng.choice(TEXTS).encode("utf-8", "replace").decode()
    if what == "cell" and at < len(rows[line]):
        rows[line][at] = bad
    elif what == "name":
        rows[0][at] = bad
    elif what == "column":
        rows = [row if i == 0 or at >= len(row) else [*row[:at], bad, *row[at + 1 :]] for i, row in enumerate(rows)]
    elif what == "rows":
        rows = [rows[0], *rng.sample(rows[1:], rng.randint(0, min(4, len(rows) - 1)))]
    elif what == "wide":
        rows = [[*row, *(f"w{i}" if row is rows[0] else "1" for i in range(5000))] for row in rows]
    elif what == "long":
        rows[line][0] = "a" * 1_000_000
    elif what == "ragged":
        rows[line] = rows[line] * 2
    elif what == "one row":
        rows = rows[:2]
    elif what == "twice":
        rows = [row + row[:1] for row in rows]
    elif what == "many texts":
        rows = [row if i == 0 or at >= len(row) else [*row[:at], f"é{i}", *row[at + 1 :]] for i, row in enumerate(rows)]
    elif what == "path" and rows[0][0] == "file_name":
        rows[max(1, line) % len(rows)][0] = rng.choice(
            (
                "/etc/hostname",
                f"../../{SECRET}",
                str(_secret(path)),
                "metadata.csv",
                ".",
                "",
                "/dev/zero",
                "0.png\n",
                "~/0.png",
            )
        )
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    held = text.getvalue()
    path.write_text(held.replace(",", ',"', 1) if what == "quote" else held, encoding="utf-8")
    return f"{path.name[:30]}: {what} ({bad[:20]!r})"


def _lines(path: Path, rng: random.Random) -> str:
    """Lines of JSON changed."""
    if not path.is_file():
        return "nothing"
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() or [""]
    at = rng.randrange(len(lines))
    other = rng.choice(
        (
            "[" * 50_000, '{"a":' * 50_000, "null", "[]", "1", "{}", '{"age": {"a": 1}}', '{"age": [1, 2]}',
            '{"label": 1e999}', "NaN", '{"age": "x"}', '{"age": ' + "9" * 5000 + "}", '{"\\ud800": 1}',
            '{"a\\u0000": 1, "a\\u0000": 2}', edited(lines[at], rng),
        )
    )  # fmt: skip
    if rng.random() < 0.4:
        lines = [other]
    else:
        lines[at] = other
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return f"line {at} is {other[:40]}"


def _columns(path: Path, rng: random.Random) -> str:
    """A parquet table with another column, or odd metadata."""
    try:
        table = pq.read_table(path)
    except Exception:  # noqa: BLE001  it was damaged before
        return "nothing"
    rows = len(table)
    odd: dict[str, Callable[[], Any]] = {
        "null": lambda: pa.nulls(rows),
        "list": lambda: [[1, 2]] * rows,
        "struct": lambda: [{"a": 1}] * rows,
        "binary": lambda: [b"\xff\xfe"] * rows,
        "time": lambda: pa.array([2**62] * rows, pa.timestamp("ns")),
        "far time": lambda: pa.array([2**60] * rows, pa.timestamp("s")),
        "duration": lambda: pa.array([2**62] * rows, pa.duration("s")),
        "decimal": lambda: pa.array([None] * rows, pa.decimal128(38, 2)),
        "big": lambda: pa.array([2**64 - 1] * rows, pa.uint64()),
        "half": lambda: pa.array(np.full(rows, np.inf, np.float16)),
        "inf": lambda: pa.array([float("inf"), *[1.0] * (rows - 1)]),
        "dictionary": lambda: pa.array(["a", None] * (rows // 2)).dictionary_encode(),
        "map": lambda: pa.array([[("a", 1)]] * rows, pa.map_(pa.string(), pa.int64())),
        "mixed texts": lambda: pa.array([None, "\x1b[31m", "\u202e"] * rows)[:rows],
        "bool": lambda: [True] * rows,
        "large": lambda: pa.array(["é"] * rows, pa.large_string()),
    }
    what = rng.choice((*odd, SECRET, "metadata", "metadata", "no columns", "no rows", "twice", "name", "features"))
    if what in odd:
        at = rng.randrange(table.num_columns)
        table = table.set_column(at, table.schema.field(at).name, [odd[what]()])
    elif what in ("metadata", "features"):
        junk = rng.choice((
            "[]", "{}", "null", "{", "1", '{"info": []}', '{"info": {"features": []}}', '{"info": null}', "\xff",
            '{"info": {"features": {"image": {"_type": "Nothing"}}}}', '{"index_columns": 1}', "[" * 5000,
            '{"info": {"features": {"label": {"_type": "ClassLabel", "names": ["a"]}}}}',
        ))  # fmt: skip
        table = table.replace_schema_metadata({rng.choice(("huggingface", "pandas", "ARROW:schema")): junk})
    elif what == SECRET and "image" in table.column_names:
        named = {"bytes": None, "path": str(_secret(path))}
        table = table.set_column(table.column_names.index("image"), "image", [[named] * rows])
    elif what == "no columns":
        table = table.select([])
    elif what == "no rows":
        table = table[:0]
    elif what == "twice":
        table = table.append_column(table.schema.field(0), table.column(0))
    else:
        table = table.rename_columns([rng.choice(TEXTS).encode("utf-8", "replace").decode(), *table.column_names[1:]])
    try:
        pq.write_table(table, path)
    except (pa.ArrowException, ValueError, NotImplementedError):
        return "nothing"
    return f"{path.name[:30]}: {what}"


def _picture(path: Path, rng: random.Random) -> str:
    """An image of another kind, or a bomb."""
    ways: dict[str, Callable[[], Any]] = {
        "bomb": lambda: path.write_bytes(_bomb(13_300)),
        "bigger bomb": lambda: path.write_bytes(_bomb(2**31 - 1)),
        "colour": lambda: Image.fromarray(_pixels(0, 0, True)).save(path, "PNG"),
        "deep": lambda: Image.fromarray(_pixels(0, 0).astype(np.uint16) * 200).save(path, "PNG"),
        "float": lambda: Image.fromarray(np.full((6, 5), np.nan, np.float32)).save(path, "TIFF"),
        "cmyk": lambda: Image.new("CMYK", (5, 6)).save(path, "JPEG"),
        "clear": lambda: Image.new("LA", (5, 6)).save(path, "PNG"),
        "palette": lambda: Image.new("P", (5, 6)).save(path, "GIF"),
        "moving": lambda: Image.new("L", (5, 6)).save(
            path, "GIF", save_all=True, append_images=[Image.new("L", (5, 6), 9)] * 9
        ),
        "one bit": lambda: Image.new("1", (5, 6)).save(path, "PNG"),
        "one pixel": lambda: Image.new("L", (1, 1)).save(path, "PNG"),
        "thin": lambda: Image.new("L", (20_000, 1)).save(path, "PNG"),
        "turned": lambda: Image.new("L", (5, 6)).save(path, "TIFF", exif=_exif()),
        "ppm": lambda: path.write_bytes(b"P5 99999 99999 255\n"),
        "script": lambda: path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 5 6\n"),
        "svg": lambda: path.write_text('<svg xmlns="http://www.w3.org/2000/svg"/>'),
        "comment bomb": lambda: path.write_bytes(_bomb(5, b"zTXt", b"a\0\0" + zlib.compress(bytes(80_000_000)))),
    }
    what = rng.choice(list(ways))
    ways[what]()
    return f"{path.name[:30]} is {what}"


def _secret(path: Path) -> Path:
    """An image that lies outside of the data."""
    return next(p for p in path.parents if p.name == "here").parent / SECRET


def _linked(path: Path, rng: random.Random) -> str:
    """A link, in place of an image, to one that lies outside."""
    path.unlink()
    path.symlink_to(_secret(path))
    return f"{path.name[:30]} is a link to {SECRET}"


def _exif() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


def _bomb(side: int, kind: bytes = b"tEXt", content: bytes = b"a\0b") -> bytes:
    """A small PNG that says that it has side x side pixels."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    pixels = zlib.compress(bytes(min(side * (side + 1), 20_000_000)), 9)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(kind, content)
        + chunk(b"IDAT", pixels)
        + chunk(b"IEND", b"")
    )


def _json(path: Path, rng: random.Random) -> str:
    """A JSON file of another shape."""
    if not path.is_file():
        return "nothing"
    try:
        content = json.loads(path.read_text())
    except (ValueError, RecursionError, UnicodeDecodeError):
        return "nothing"
    other = rng.choice(
        (None, [], {}, 1, "x", [[]], {"": None}, {"splits": 1}, {"splits": ["../.."]}, [1, 2], float("inf"), "../../x")
    )
    if isinstance(content, dict) and content and rng.random() < 0.75:
        key = rng.choice(sorted(content))
        if rng.random() < 0.3:
            del content[key]
        else:
            content[key] = other
    else:
        content, key = other, "all"
    path.write_text(json.dumps(content))
    return f"{path.name}: {key} is {other!r}"


def _beside_it(path: Path, rng: random.Random) -> str:
    """Something else put into the folder."""
    name = rng.choice(HOSTILE_NAMES)
    target = os.path.join(os.fsencode(path.parent), name)
    if not os.path.lexists(target):
        rng.choice((os.mkdir, os.mkfifo, lambda t: os.symlink(b"..", t), lambda t: os.symlink(b"nowhere", t),
                    lambda t: shutil.copyfile(os.fsencode(path), t)))(target)  # fmt: skip
    return f"{name[:20]!r} beside {path.name[:30]}"


_PICTURES = (_picture, _picture, _picture, _beside_it, _linked)
_WAYS: dict[str, tuple[Callable[[Path, random.Random], str], ...]] = {
    ".csv": (
        _cells, _cells, _beside_it,
    ), ".tsv": (_cells,), ".jsonl": (_lines, _lines), ".parquet": (_columns, _columns),
    ".json": (
        _json, _json,
    ), ".png": _PICTURES, ".bmp": _PICTURES, ".tif": _PICTURES, ".jpg": _PICTURES, ".gif": _PICTURES,
    ".webp": _PICTURES,
}  # fmt: skip


# --- arrays


def _array(rng: random.Random) -> Any:
    """Something that may stand for x, y or clients."""
    shape = rng.choice(((
        ROWS, 3,
    ), (ROWS, 3), (ROWS,), (ROWS,), (ROWS, 4, 4), (ROWS, 3, 4, 4), (ROWS, 4, 4, 3), (ROWS, 1, 1), (0,), (),
                        (ROWS, 0), (1, 3), (ROWS, 3, 3, 3), (ROWS, 2, 2, 2, 2), (ROWS - 1, 3)))  # fmt: skip
    count = int(np.prod(shape))
    numbers = np.arange(count).reshape(shape)
    kind = rng.choice(
        (
            "uint8", "int64", "int64", "float32", "float32", "float64", "float16", "bool", "complex64", "object",
            "U5", "S5", "datetime64[D]", "timedelta64[s]", "uint64", "longdouble", "masked", "nan", "inf", "classes",
            "classes", "classes", "big", "texts", "list", "ragged", "set", "none", "text", "torch", "sparse",
            "bfloat16", "record", "nested", "meta", "frame", "negative",
        )
    )  # fmt: skip
    made: dict[str, Callable[[], Any]] = {
        "masked": lambda: np.ma.masked_array(numbers.astype(float), numbers % 2 == 0),
        "nan": lambda: np.where(numbers % 5 == 0, np.nan, numbers),
        "inf": lambda: np.where(numbers % 5 == 0, np.inf, numbers % 3),
        "classes": lambda: np.arange(ROWS) % 2,
        "big": lambda: numbers.astype(float) * 1e38,
        "texts": lambda: np.array(["a", "b", "\x1b[31m"] * 8),
        "list": lambda: numbers.tolist(),
        "ragged": lambda: [[1], [1, 2]] * 12,
        "set": lambda: {1, 2},
        "none": lambda: None,
        "text": lambda: "abc",
        "torch": lambda: torch.tensor(numbers).float(),
        "sparse": lambda: torch.tensor(numbers).float().to_sparse(),
        "bfloat16": lambda: torch.tensor(numbers).bfloat16(),
        "record": lambda: np.zeros(ROWS, [("a", int), ("b", float)]),
        "nested": lambda: np.array([{"a": 1}, [1]] * 12, object),
        "meta": lambda: torch.empty((ROWS, 3), device="meta"),
        "frame": frame,
        "negative": lambda: -numbers[::-1],
    }
    return made[kind]() if kind in made else numbers.astype(kind)


def _python(rng: random.Random) -> Case:
    """Arrays from Python: refused with an ``InputError``, or made into clients and trained on."""
    x, y = _array(rng), rng.choice((_array(rng), np.arange(ROWS) % 3))
    more: dict[str, Any] = {}
    if rng.random() < 0.4:
        more["clients"] = rng.choice((_array(rng), np.arange(ROWS) // 8))
    if rng.random() < 0.2:
        more["class_names"] = rng.choice(
            (["a", "b"], ["a", "a"], [], ["a", "b", "c"], [1, 2], "ab", [None, None, None])
        )
    if rng.random() < 0.2:
        more["test"] = rng.choice(((x, y), (x, y, more.get("clients")), x, [], (1, 2), "ab"))

    def entry(arguments: Sequence[str]) -> None:
        from idiolect.core.errors import InputError
        from idiolect.data import from_arrays
        from idiolect.studies import Study

        try:
            source = from_arrays(x, y, **more)
            study = Study(
                data=source, partition=None if more.get("clients") is not None else "iid", clients=2, rounds=1
            )
            made = study.federation()
            if not np.isfinite(made.mean).all():
                raise AssertionError("a mean that is not finite")
        except InputError as error:
            refuse(error)

    def said(value: Any) -> str:
        return f"{type(value).__name__} {getattr(value, 'dtype', '')} {tuple(getattr(value, 'shape', ()))}"

    what = ", ".join(f"{k}: {said(v)}" for k, v in {"x": x, "y": y, **more}.items())
    return Case("files", what, [], entry=entry)
