"""What can become of a file: cut, flipped, replaced, renamed, or no file any more."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

HOSTILE_NAMES = (
    b"\xff\xfe", b"a\nb", b"\x1b[31mred\x1b[0m", "\u202egnp".encode(), b"-rf", b"--out", b" ", b"%s%n", b"~",
    b"$HOME", "\u00e9\u0301".encode(), b"n" * 250, "\U0001f600".encode(), b"CON", b"a;b", b"'\"",
    b"<script>alert(1)<", b"\x9b31m",
)  # fmt: skip

TEXTS = (
    "", " ", "nan", "NaN", "inf", "-inf", "1e999", "-1", "0", "1", "2", "1e-400", "9" * 30, "9" * 5000, "-0", "0x10",
    "1_000", "1e3", "0.1.2", "true", "null", "None", "~", "~nosuchuser", "2024-02-30", "2024-02-29", "12:30:45", "é",
    "\u202eabc", "\x1b[31mred", "\x07", "a\nb", "\t", "\u2028", "\U0001f600", "\udcff", "..", "../..", "/",
    "/dev/null", "/dev/zero", "/dev/full", "/proc/self/mem", ".", "a" * 300, "a" * 5000, "-", "--", "---", "{}",
    "[]", "[[]]", "{a: 1}", "[" * 3000, "{" * 3000, "(" * 3000, "a:(b=(c=1))", "a(b", "a:b=c,", ":", "=", ",",
    "a=b=c", "a:b", "a.b=c", "*", "&a", "*a", "!!int abc", "!!python/object:os.system", "%", "%s", "{0}", "\\", "'",
    '"', "<b>", "&lt;", "@", "#", "`id`", "$(id)", "0-", "0-999999999", "5-1", "0+0", "100%", "101%", "-5%", "0%",
    "1e9%", "evil.net", "evil", "os.getcwd", "sys.exit", "json.loads", "no.such.module", ".x", "x.", "x..y",
    "hf:a/b", "18446744073709551616", "9223372036854775808", "4294967296", "1000000", "1/2", "1,5", "+1", "１２", "½",
    "\ufeff1",
)  # fmt: skip


def edited(text: str, rng: random.Random) -> str:
    """A text with a slip or two."""
    for _ in range(rng.randint(1, 2)):
        at = rng.randrange(len(text) + 1)
        other = rng.choice("0123456789.,:;=+-%()[]{}eE _/\\'\"\n\x00é#!&*~|<>@xn")
        text = rng.choice(
            (
                text[:at] + text[at + 1 :], text[:at] + other + text[at:], text[:at] + other + text[at + 1 :],
                text[:at] * 2, text[:at] + text[at : at + 2][::-1] + text[at + 2 :], text.upper(), text + text,
                text[at:],
            )
        )  # fmt: skip
    return text


def _cut(path: Path, rng: random.Random) -> str:
    content = path.read_bytes()
    keep = rng.choice((0, 1, len(content) // 2, max(0, len(content) - 1), rng.randrange(len(content) + 1)))
    path.write_bytes(content[:keep])
    return f"cut to {keep} bytes"


def _flip(path: Path, rng: random.Random) -> str:
    content = bytearray(path.read_bytes())
    bits = [rng.randrange(8 * len(content)) for _ in range(rng.choice((1, 1, 1, 2, 8)))] if content else []
    for bit in bits:
        content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    return f"bits {bits} flipped"


def _overwrite(path: Path, rng: random.Random) -> str:
    content = bytearray(path.read_bytes())
    at, count = rng.randrange(len(content) + 1), rng.choice((1, 4, 64, 1024))
    content[at : at + count] = rng.choice((rng.randbytes(count), bytes(count), b"\xff" * count))
    path.write_bytes(content)
    return f"{count} bytes from {at} on overwritten"


def _insert(path: Path, rng: random.Random) -> str:
    content, count = path.read_bytes(), rng.choice((1, 3, 100))
    at = rng.choice((0, len(content), rng.randrange(len(content) + 1)))
    path.write_bytes(content[:at] + rng.choice((rng.randbytes(count), b"\0" * count, b"\n" * count)) + content[at:])
    return f"{count} bytes put in at {at}"


def _swap(path: Path, rng: random.Random) -> str:
    content = path.read_bytes()
    a, b = sorted((rng.randrange(len(content) + 1), rng.randrange(len(content) + 1)))
    path.write_bytes(content[b:] + content[a:b] + content[:a])
    return f"bytes swapped around {a} and {b}"


def _double(path: Path, rng: random.Random) -> str:
    path.write_bytes(path.read_bytes() * 2)
    return "doubled"


def _noise(path: Path, rng: random.Random) -> str:
    path.write_bytes(rng.randbytes(rng.choice((1, 100, 5000))))
    return "replaced by noise"


def _recode(path: Path, rng: random.Random) -> str:
    content = path.read_bytes()
    text = content.decode("utf-8", "replace")
    ways: dict[str, Callable[[], bytes]] = {
        "utf-16": lambda: text.encode("utf-16"),
        "utf-16-le": lambda: text.encode("utf-16-le"),
        "utf-32": lambda: text.encode("utf-32"),
        "latin-1": lambda: (text + "é").encode("latin-1", "replace"),
        "utf-8-sig": lambda: text.encode("utf-8-sig"),
        "crlf": lambda: content.replace(b"\n", b"\r\n"),
        "cr": lambda: content.replace(b"\n", b"\r"),
        "no line ends": lambda: content.replace(b"\n", b" "),
        "with nul": lambda: content.replace(b"e", b"\0", 1),
        "half a character": lambda: content + "é".encode()[:1],
    }
    way = rng.choice(list(ways))
    path.write_bytes(ways[way]())
    return f"written as {way}"


def _remove(path: Path, rng: random.Random) -> str:
    path.unlink()
    return "removed"


def _folder(path: Path, rng: random.Random) -> str:
    path.unlink()
    path.mkdir()
    if rng.random() < 0.5:
        (path / path.name).write_bytes(b"x")
    return "made a folder"


def _fifo(path: Path, rng: random.Random) -> str:
    path.unlink()
    os.mkfifo(path)
    return "made a FIFO"


def _link(path: Path, rng: random.Random) -> str:
    path.unlink()
    target = rng.choice(("nowhere", path.name, ".", "..", "/dev/zero", "/dev/full", "/dev/null", "/etc/hostname", "/"))
    path.symlink_to(target)
    return f"made a link to {target}"


def _linked(path: Path, rng: random.Random) -> str:
    aside = path.with_name(f"{path.name}.aside")
    path.rename(aside)
    path.symlink_to(aside.name)
    return "moved, with a link in its place"


def _rename(path: Path, rng: random.Random) -> str:
    name = rng.choice(HOSTILE_NAMES)
    suffix = os.fsencode(path.suffix) if rng.random() < 0.7 else b""
    target = os.path.join(os.fsencode(path.parent), name[: 250 - len(suffix)] + suffix)
    os.rename(os.fsencode(path), target)
    return f"renamed to {name[:20] + suffix!r}"


def _closed(path: Path, rng: random.Random) -> str:
    path.chmod(0)
    return "made unreadable"


_CONTENT = [_cut] * 4 + [_flip] * 6 + [_overwrite] * 3 + [_insert, _swap, _swap, _double, _noise] + [_recode] * 3
_KIND = [_remove, _remove, _folder, _fifo, _link, _link, _linked, _rename, _rename, _closed]


def files(root: Path) -> list[Path]:
    """The regular files below a folder, in order."""
    return sorted(p for p in root.rglob("*") if p.is_file() and not p.is_symlink())


def damage(path: Path, rng: random.Random) -> str:
    """Do something to a file, and say what."""
    return f"{path.name[:30]} {rng.choice(_CONTENT + _KIND)(path, rng)}"


def spoil(path: Path, rng: random.Random) -> str:
    """Do something to what a file holds; it stays a file."""
    return f"{path.name[:30]} {rng.choice(_CONTENT)(path, rng)}"


def replaced(path: Path, other: Path) -> str:
    """Put another file in its place."""
    shutil.copyfile(other, path)
    return f"{path.name} replaced by {other.parent.name}/{other.name}"
