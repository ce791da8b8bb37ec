"""What was said of tables in the training of a bundle, which a site may have forgotten to say."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import pandas as pd

from idiolect.core.errors import InputError, option
from idiolect.data.custom.form import Form, form_of, is_mark
from idiolect.data.custom.questions import columns_asked, question_in
from idiolect.deploy.schema import About

log = logging.getLogger(__name__)


class Usual(NamedTuple):
    """The settings of the training's tables.

    Attributes:
        group: the column that says which samples belong together.
        missing: marks of missing values, as the setting has them.
        target: the column of the target, or a question as ``num>0``.
    """

    group: str | None = None
    missing: str | None = None
    target: str | None = None

    @property
    def asked(self) -> str:
        """The question that was the target, with the fix; "" if it was a column."""
        return (
            f"; in training the target was {self.target!r}: give this as {option('target')}, in quotes"
            if self.target and any(sign in self.target for sign in "<>=!")
            else ""
        )

    def check_question(self, target: str | None, columns: Collection[str], where: str) -> None:
        """Refuse another question of the training's column, and name the training's beside one of another column.

        Args:
            target: the site's, a column or a question.
            columns: of the site's table.
            where: the table, for messages.

        Raises:
            InputError: the answers would mean something else than in training.
        """
        if not self.asked or (own := question_in(target, columns, where)) is None:
            return
        if own.column not in columns_asked(self.target):
            said = "the target is %r, and in training it was %r: yes must mean the same in both"
            log.warning(said, target, self.target)
        elif own != question_in(self.target, columns, where):
            raise InputError(
                f"target: {target!r} asks {own.column!r} something else than in training, where the target was "
                f"{self.target!r}: give this as {option('target')}, in quotes"
            )

    def marks(self, form: Form) -> dict[str | None, list[str]]:
        """Marks of the training that a site has not given, by column; those of all features by None."""
        by: dict[str | None, list[str]] = {}
        for text in form_of(missing=self.missing).missing if self.missing else ():
            name, equals, mark = text.rpartition("=")
            if text not in form.missing and mark not in form.missing:
                by.setdefault(name if equals else None, []).append(mark)
        return by

    def forgotten(self, columns: Mapping[str, pd.Series[Any]], form: Form) -> Iterator[str]:
        """Sentences about columns that have marks of the training which the site has not given.

        Args:
            columns: the site's columns of features, by the training's names.
            form: how the site's tables are written.
        """
        by = self.marks(form)
        for name, values in columns.items():
            for mark in by.get(name, []) + by.get(None, []):
                if is_mark(values, [mark]).any():
                    yield (
                        f"column {name!r} has {mark}, which stood for a missing value in training: give "
                        f"{option('missing', f'{name}={mark}')} if it does here too"
                    )


def usual_of(about: About) -> Usual:
    """What was said in the training of a bundle."""
    study = about.provenance.study if about.provenance else {}
    group, missing, target = (study.get(name) for name in ("group_column", "missing", "target"))
    return Usual(*(None if value is None else str(value) for value in (group, missing, target)))
