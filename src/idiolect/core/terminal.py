"""Text for a terminal. Control characters from a file are shown, never obeyed. Everything printed goes through this."""

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
    """Indented JSON whose characters are all ``printable``; with ``narrow`` they are all ASCII."""
    return printable(json.dumps(content, indent=1, ensure_ascii=narrow), json.dumps)
