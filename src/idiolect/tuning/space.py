"""The settings that a search varies: their ranges, and which method of a study has which."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from idiolect import methods
from idiolect.core.errors import InputError, nearest
from idiolect.core.option_spec import plain, scalar
from idiolect.studies import Study, Use
from idiolect.studies.local_training import NAMES
from idiolect.studies.method_use import with_values

DEFAULT = "default"
"""In the place of a range: those that methods declare, and the usual ones of training."""
_INTERVAL = re.compile(r"\s*([^\s:]+?)\s*\.\.\s*([^\s:]+?)\s*(?::\s*(\w+)\s*)?")
_WHOLE = re.compile(r"[+-]?\d+")
_DIGITS = 4  # of a value that is tried
_EDGE = 0.05  # of the length of a range: nearer than this to its end, a choice lies at its edge
_HOW = "write low..high, low..high:log, or values with commas"


class Interval(NamedTuple):
    """All numbers between two, both included."""

    low: float
    high: float
    log: bool = False
    whole: bool = False
    """Whether only whole numbers are tried."""

    def at(self, share: float) -> Any:
        """The value at a share 0..1 of the range's length; on a logarithmic scale if the range has one."""
        low, high = (self.low - 0.5, self.high + 0.5) if self.whole else (self.low, self.high)
        low = max(low, self.low / 2) if self.whole and self.log else low
        value = low * (high / low) ** share if self.log else low + share * (high - low)
        if self.whole:
            return int(min(max(round(value), self.low), self.high))
        return self.near(value)

    def near(self, value: float) -> float:
        """The value in a few digits, inside the range."""
        return min(max(float(f"{value:.{_DIGITS}g}"), self.low), self.high)

    def edge(self, value: Any) -> bool:
        """Whether a value lies at an end of the range; of two whole numbers none does."""
        if self.whole:
            return self.high - self.low > 1 and value in (self.low, self.high)
        low, high, here = map(math.log, (self.low, self.high, value)) if self.log else (self.low, self.high, value)
        return not _EDGE <= (here - low) / (high - low) <= 1 - _EDGE

    def is_upper(self, value: Any) -> bool:
        """Whether a value is nearer to the upper end."""
        middle = math.sqrt(self.low * self.high) if self.log else (self.low + self.high) / 2
        return bool(value > middle)

    def __str__(self) -> str:
        ends = [f"{int(end)}" if self.whole else f"{end:g}" for end in (self.low, self.high)]
        return "..".join(ends) + (":log" if self.log else "")


class Choice(NamedTuple):
    """Some values."""

    values: tuple[Any, ...]

    def at(self, share: float) -> Any:
        """The value at a share 0..1 of the list."""
        return self.values[min(int(share * len(self.values)), len(self.values) - 1)]

    def edge(self, value: Any) -> bool:
        """Whether a value is the lowest or the highest of three or more numbers."""
        numbers = [v for v in self.values if isinstance(v, int | float) and not isinstance(v, bool)]
        return len(numbers) == len(self.values) > 2 and value in (min(numbers), max(numbers))

    def is_upper(self, value: Any) -> bool:
        """Whether a value is the highest."""
        return bool(value == max(self.values))

    def __str__(self) -> str:
        return ", ".join(map(plain, self.values))


Range = Interval | Choice
Space = dict[str, Range]
"""The ranges of one method's options and settings, by name."""


def parse(name: str, text: Any) -> Range:
    """A range as it is written: ``0.001..0.3:log``, ``1..10``, or ``10,25,50``; a list is one of values.

    ``whole`` is left open: ``spaces`` asks the method whether the option takes other numbers than whole ones.

    Raises:
        InputError: it cannot be read, or is empty or reversed.

    >>> parse("lr", "0.001..0.3:log"), parse("batch_size", "10,25,50")
    (Interval(low=0.001, high=0.3, log=True, whole=False), Choice(values=(10, 25, 50)))
    """
    if isinstance(text, Interval | Choice):
        return text
    if isinstance(text, list | tuple):
        return _choice(name, [scalar(v) if isinstance(v, str) else v for v in text])
    text = str(text)
    if ".." not in text:
        return _choice(name, [scalar(v) for v in text.split(",") if v.strip()])
    match = _INTERVAL.fullmatch(text)
    ends = [scalar(end) for end in match.groups()[:2]] if match else []
    if not match or not all(isinstance(e, int | float) and not isinstance(e, bool) and math.isfinite(e) for e in ends):
        raise InputError(f"search {name}={text}: cannot read this range; {_HOW}, such as 0.001..0.3:log")
    if match[3] not in (None, "log"):
        raise InputError(f"search {name}={text}: unknown scale {match[3]!r}; {_HOW}")
    low, high = map(float, ends)
    if not low < high:
        if low == high:
            raise InputError(f"search {name}={text}: this range is empty: write two different ends, or {name}={low:g}")
        raise InputError(f"search {name}={text}: this range is reversed: write the lower end first, such as 0.001..0.3")
    if match[3] and low <= 0:
        raise InputError(f"search {name}={text}: a logarithmic scale needs ends above 0: raise the lower end")
    return Interval(low, high, match[3] == "log")


def _choice(name: str, values: Sequence[Any]) -> Choice:
    if not values:
        raise InputError(f"search {name}: there is no value to try; {_HOW}")
    if wrong := next((v for v in values if not isinstance(v, str | int | float | None)), None):
        raise InputError(f"search {name}: {wrong!r} is not a single value; {_HOW}")
    if len(set(map(plain, values))) < len(values):
        raise InputError(f"search {name}={','.join(map(plain, values))}: a value is given twice: give each once")
    return Choice(tuple(values))


def spaces(study: Study, search: Mapping[str, Any]) -> dict[str, Space]:
    """What is searched for each method of a study, by its label; empty for a method that has none of it.

    Args:
        study: the study.
        search: ranges by name. ``lr`` is that of every method, of its own option if it has one of this name;
            ``fedpac.lr`` of one method alone, which may be named by its label. ``default``: the ranges that methods
            declare, and that of ``lr``.

    Raises:
        InputError: a range cannot be read, is of an option that no method has, or reaches outside of what it takes.
    """
    chosen: dict[str, Space] = {u.label: {} for u in study.methods}
    if DEFAULT in search:
        for one in study.methods:
            chosen[one.label] |= _usual(study, one)
    ranges = {name: parse(name, text) for name, text in search.items() if name != DEFAULT}
    for scoped in (False, True):  # that of one method goes before that of all
        for name, range in ranges.items():
            if ("." in name) is scoped:
                _add(study, chosen, name, range)
    if not any(chosen.values()):
        raise InputError("there is nothing to search: give ranges, such as lr=0.001..0.3:log, or default")
    return {u.label: _settled(study, u, chosen[u.label]) for u in study.methods}


def _add(study: Study, chosen: dict[str, Space], name: str, range: Range) -> None:
    whom, _, option = name.rpartition(".")
    users = [u for u in study.methods if not whom or whom in (u.name, u.label)]
    if not users:
        hint = nearest(whom, [u.label for u in study.methods])
        raise InputError(f"search {name}: method {whom!r} is not in this study; {hint}")
    having = [u for u in users if option in names_of(u)]
    if not having:
        who = f"method {whom} has" if whom else "no method of this study has"
        hint = nearest(option, dict.fromkeys(n for u in users for n in names_of(u)))
        raise InputError(f"search {name}: {who}{' no' if whom else ' an'} option or setting {option!r}; {hint}")
    for one in having:
        chosen[one.label][option] = range


def names_of(one: Use) -> list[str]:
    """What can be searched for a method: its options, and the settings that it may have of its own."""
    return [*methods.get(one.name).options, *NAMES]


def _usual(study: Study, one: Use) -> Space:
    entry = methods.get(one.name)
    usual = {name: parse(f"{one.name}.{name}", text) for name, text in entry.search.items()}
    if "lr" not in entry.options:
        lr = Interval(0.001, 0.3, log=True) if study.of(one).optimiser == "sgd" else Interval(1e-4, 0.03, log=True)
        return {"lr": lr} | usual
    return usual


def _settled(study: Study, one: Use, space: Space) -> Space:
    """The ranges, checked at their ends, and made of whole numbers where the method takes no others."""
    settled: Space = {}
    for name, range in space.items():
        takes = _taker(study, one, name)
        if isinstance(range, Choice):
            for value in range.values:
                takes(value)
            settled[name] = range
            continue
        ends = [_number(end) for end in (range.low, range.high)]
        for end in ends:
            takes(end)
        try:
            takes(range.low + (range.high - range.low) / math.pi)  # hardly a whole number
        except InputError:
            range = range._replace(whole=True)
        settled[name] = range
    return settled


def _taker(study: Study, one: Use, name: str) -> Callable[[Any], object]:
    def takes(value: Any) -> None:
        try:
            study.of(with_values(one, {name: value}))
        except InputError as error:
            raise InputError(f"search {name}: {error}") from None

    return takes


def _number(value: float) -> float:
    return int(value) if value == int(value) else value


def size(space: Space) -> float:
    """How many settings a space has; infinite if one of them is a number of any kind."""
    each = [
        len(r.values) if isinstance(r, Choice) else r.high - r.low + 1 if r.whole else math.inf for r in space.values()
    ]
    return math.prod(each)


def grid(space: Space) -> list[dict[str, Any]]:
    """All settings of a finite space, the first name changing last."""
    settings: list[dict[str, Any]] = [{}]
    for name, range in space.items():
        whole = [] if isinstance(range, Choice) else np.arange(range.low, range.high + 1).astype(int).tolist()
        values = range.values if isinstance(range, Choice) else whole
        settings = [s | {name: value} for s in settings for value in values]
    return settings


def said(values: Mapping[str, Any]) -> str:
    """Settings in words: ``lr 0.1, local_epochs 2``."""
    return ", ".join(f"{name} {f'{v:g}' if isinstance(v, float) else plain(v)}" for name, v in values.items())


def written(search: Mapping[str, Any]) -> dict[str, str]:
    """Ranges as texts that ``parse`` reads."""
    texts = {name: text if isinstance(text, str) else parse(name, text) for name, text in search.items()}
    return {name: str(text).replace(", ", ",") for name, text in texts.items()}
