"""What the texts, or the numbers, of a feature seem to be: dates, times, quantities with units, pairs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

_MOST = 0.5  # the share of a column's different texts that say what it is

_WORDS = 4  # of a sentence, at least
_LONGEST = 60  # characters of a text that is looked at

# In English, German, French, Spanish, Italian, Portuguese and Dutch.
_MONTHS = re.findall(
    r"\w+",
    "january jänner januar janvier enero gennaio janeiro januari february februar février fevrier febrero febbraio "
    "fevereiro februari march märz maerz mars marzo março marco maart april avril abril aprile may mai mayo maggio "
    "maio mei june juni juin junio giugno junho july juli juillet julio luglio julho august août aout agosto augustus "
    "september septembre septiembre settembre setembro october oktober octobre octubre ottobre outubro november "
    "novembre noviembre novembro december dezember décembre diciembre dicembre dezembro sept mrt mrz",
)
"""A month is written with its first three letters or more."""
_PREFIXES = {month[:end] for month in _MONTHS for end in range(3, len(month) + 1)}
_MONTH = rf"(?:{'|'.join(sorted(_PREFIXES, reverse=True))})\b\.?"
_DAY_NAME = r"(?:(?:mon|tue|wed|thu|fri|sat|sun)[a-z]{0,6}\.?,?\s+)?"
_YEAR = r"(?:'?\d{2}|\d{4})"
_DAY = r"\d{1,2}(?:st|nd|rd|th|er|\.|º)?"
_CLOCK = r"(?:[01]?\d|2[0-4])[:.h][0-5]\d(?:[:.][0-5]\d(?:[.,]\d+)?)?(?:\s*[ap]\.?m\.?)?"
_ZONE = r"(?:\s*(?:z|utc|gmt|[a-z]{3,4}|[+-]\d{2}:?\d{2}))?"
_GAP = r"(?:\s*[-/.,]\s*|\s+)"
_DATES = (
    r"(?:\d{4}\s?[-/.]\s?\d{1,2}\s?[-/.]\s?\d{1,2}|\d{1,2}\s?[-/.]\s?\d{1,2}\s?[-/.]\s?(?:\d{2}|\d{4}))\.?",  # 5.1.2024
    rf"{_DAY_NAME}{_DAY}{_GAP}(?:of\s+|de\s+)?{_MONTH}(?:{_GAP}(?:de\s+)?{_YEAR})?",  # 5 Jan 2024, 5-Jan-24, 5. Januar
    rf"{_DAY_NAME}{_MONTH}{_GAP}{_DAY}(?:{_GAP}{_YEAR})?",  # Jan 5, 2024
    rf"\d{{4}}{_GAP}{_MONTH}(?:{_GAP}{_DAY})?",  # 2024-Jan-05
    rf"{_DAY_NAME}{_MONTH}\s+{_DAY}\s+{_CLOCK}{_ZONE}\s+\d{{4}}",  # Fri Jan  5 08:30:00 2024
    rf"{_MONTH}{_GAP}{_YEAR}",  # January 2024, Jan-24
    r"(?:19|20)\d{2}\s?[-/.]\s?(?:0?[1-9]|1[0-2])",  # 2024-01
    r"(?:0?[1-9]|1[0-2])\s?[-/.]\s?(?:19|20)\d{2}",  # 01/2024
    r"(?:19|20)\d{2}-?w\d{2}(?:-?\d)?",  # 2024-W05
    r"(?:19|20)\d{2}[\s-]?q[1-4]|q[1-4][\s/-]?(?:19|20)\d{2}",  # 2024 Q1
    r"\d{4}年\d{1,2}月(?:\d{1,2}日)?",
)
_DATE = re.compile(
    rf"(?:{'|'.join(_DATES)})(?:(?:\s*t\s*|[\s,:]+(?:at\s+|um\s+)?){_CLOCK}{_ZONE})?|(?:19|20)\d{{6}}t\d{{4,6}}{_ZONE}",
    re.IGNORECASE,
)
_TIME = re.compile(
    r"(?:[01]?\d|2[0-4]):[0-5]\d(?::[0-5]\d(?:[.,]\d+)?)?(?:\s*[ap]\.?m\.?)?(?:\s*uhr)?|"
    r"(?:0?[1-9]|1[0-2])\s*[ap]\.?m\.?|\d{1,2}h[0-5]\d|\d+:[0-5]\d:[0-5]\d(?:[.,]\d+)?|\d+\s+days?,?\s+\d+:\d\d:\d\d\S*",
    re.IGNORECASE,
)
_AMOUNT = r"[<>≤≥~≈±+-]{0,2}\s*\d+(?:[.,]\d+)*"
_SINGLE = "%°‰$€£¥µgmlhsdyjkKCFVAWNJ"  # units of one letter or sign
_QUANTITY = re.compile(
    rf"(?:([$€£¥])\s*{_AMOUNT}(?:\s*[kKmM])?|{_AMOUNT}\s*([{_SINGLE}]|[^\W\d_][^\W\d_²³%°./*^\d-]+(?:[/*·^]\S+)?|"
    rf"[µ°%]\S*|[^\W\d_]+[/²³]\S*))"
)
_DIGIT_GROUPS = re.compile(r"[+-]?\d{1,3}(?:[,'’\s]\d{2,3})+(?:[.,]\d+)?")
_NUMBER = r"[+-]?\d{1,3}(?:[.,]\d+)?"
_PAIR = re.compile(
    rf"{_NUMBER}\s*[/x×*:|;]\s*{_NUMBER}(?:\s*[x×/]\s*{_NUMBER})?|\(\s*{_NUMBER}\s*[,;]\s*{_NUMBER}\s*\)"
)


def are_dates(texts: Sequence[str]) -> bool:
    """Whether most of some different texts are dates or times, in any usual writing.

    >>> are_dates(["5 Jan 2024", "6 Feb 2024"]), are_dates(["08:30", "17:05"]), are_dates(["1.5", "2-3", "may"])
    (True, True, False)
    """
    digits = [text for text in texts if any(map(str.isdecimal, text[:_LONGEST]))]
    times = len(digits) > _MOST * len(texts) and all(map(_TIME.fullmatch, digits))  # unlike the titres 1:40, 1:80
    return times or _mostly(texts, _DATE.fullmatch)


def are_date_numbers(x_R: NDArray[np.float64], least: int = 2) -> bool:
    """Whether known numbers (R,) are all dates such as 20240105, or with the time, 20240105083000.

    Fewer different ones than ``least``, one or more, are none.

    >>> are_date_numbers(np.array([20240105.0, 20231231])), are_date_numbers(np.array([20240105.0, 20241305]))
    (True, False)
    """
    different = np.unique(x_R)
    if len(different) < least or not (different == np.round(different)).all() or different[0] < 19000101:
        return False
    if different[-1] > 20991231:
        if different[0] < 190001010000 or different[-1] > 20991231235959:
            return False
        hours = different // (10**4 if different[-1] > 209912312359 else 10**2)
        if (hours % 100 > 23).any():
            return False
        different = np.unique(hours // 100)
    texts = pd.Series(different.astype(np.int64)).astype(str)
    return bool(pd.to_datetime(texts, format="%Y%m%d", errors="coerce").notna().all())


def are_quantities(texts: Sequence[str]) -> bool:
    """Whether most of some different texts are numbers with units, of which some unit has several numbers.

    >>> are_quantities(["10 mg", "20 mg"]), are_quantities(["3a", "3b", "4"]), are_quantities(["1A", "2B", "65+"])
    (True, False, False)
    """
    short = [text for text in texts if len(text) <= _LONGEST]
    units = Counter(match[1] or match[2] for text in short if (match := _QUANTITY.fullmatch(text)))
    return units.total() > _MOST * len(texts) and max(units.values(), default=0) > 1


def are_digit_groups(texts: Sequence[str]) -> bool:
    """Whether most of some different texts are digits with marks that make no number, as 12,34,567.

    >>> are_digit_groups(["12,34,567", "1,23,456"]), are_digit_groups(["1.2.3", "1.2.4"])
    (True, False)
    """
    return _mostly(texts, _DIGIT_GROUPS.fullmatch)


def are_pairs(texts: Sequence[str]) -> bool:
    """Whether most of some different texts are two or three numbers, as 120/80, 3x4 or (1, 2).

    >>> are_pairs(["120/80", "130/85"]), are_pairs(["18-25", "26-40"]), are_pairs(["yes", "no"])
    (True, False, False)
    """
    return _mostly(texts, _PAIR.fullmatch)


def are_sentences(texts: Sequence[str]) -> bool:
    """Whether most of some different texts have four words or more.

    >>> are_sentences(["seen for a cough", "no pain since last week"]), are_sentences(["type 2", "not reported"])
    (True, False)
    """
    return sum(len(text.split()) >= _WORDS for text in texts) > _MOST * len(texts)


def _mostly(texts: Sequence[str], match: Callable[[str], re.Match[str] | None]) -> bool:
    return sum(len(text) <= _LONGEST and match(text) is not None for text in texts) > _MOST * len(texts)
