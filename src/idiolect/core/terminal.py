"""Text for a terminal: what a file holds is shown, and never obeyed. Everything that is printed is made of this."""

from __future__ import annotations

import json
import logging
from typing import Any

import rich.text

from idiolect.core.errors import printable


class Text(rich.text.Text):
    """A rich text of ``printable`` characters."""

    def __init__(self, text: str = "", *how: Any, **more: Any) -> None:
        super().__init__(printable(text), *how, **more)


class Formatter(logging.Formatter):
    """Log lines of ``printable`` characters."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        return printable(super().format(record))


def as_json(content: Any, narrow: bool = False) -> str:
    """Indented JSON in which only ``printable`` characters stand as they are; those of ASCII if it is to be narrow."""
    return printable(json.dumps(content, indent=1, ensure_ascii=narrow), json.dumps)
