"""Data from the user's own function, given by its import path."""

from __future__ import annotations

from typing import Any

import pandas as pd

from idiolect.core.errors import InputError
from idiolect.core.import_path import by_path
from idiolect.data.custom.arrays import from_arrays
from idiolect.data.custom.form import Form
from idiolect.data.custom.parts import from_dataset, from_frame
from idiolect.data.custom.texts import Reading
from idiolect.data.datasets.dataset import Source


def from_program(
    path: str,
    *,
    reading: Reading = Reading(),  # noqa: B008  immutable
    form: Form = Form(),  # noqa: B008  immutable
    **options: Any,
) -> Source:
    """The data that the function at an import path returns, called without arguments.

    Args:
        path: such as ``my_package.my_data``.
        reading: what of a frame or a data set is text, and how texts become ids.
        form: the marks of missing values are for a frame or a data set; names of columns for none.
        options: the others of ``open_data``; for a frame or a data set.

    Raises:
        InputError: there is no function at the path, it fails, or it returns something that cannot be read.
    """
    function = by_path(path, "data")
    if not callable(function):
        raise InputError(
            f"data {path}: this is not a function; give a function without arguments that returns the data"
        )
    try:
        data = function()
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"data {path} fails ({type(error).__name__}: {error}): fix the function") from error
    of_texts: dict[str, Any] = {"tokens": reading.tokens, "max_tokens": reading.most}
    form.refuse_names()
    if form.categorical:
        raise InputError(f"categorical is for files, and {path} returns {type(data).__name__}: give columns this type")
    missing, unlabelled = list(form.missing), form.unlabelled
    of_tables: dict[str, Any] = {"text": reading.columns, "missing": missing, "unlabelled": unlabelled, **of_texts}
    if isinstance(data, pd.DataFrame):
        return from_frame(data, name=path, **of_tables, **{k: v for k, v in options.items() if k != "resize"})
    if any(hasattr(one, "features") for one in (data.values() if isinstance(data, dict) else [data])):
        return from_dataset(data, name=path, **of_tables, **options)
    if set_ := [k for k, v in {**options, "text": reading.columns, "missing": missing}.items() if v and k != "task"]:
        raise InputError(f"{set_[0]} is for tables and image files, and {path} returns arrays: leave it out")
    if isinstance(data, Source):
        of_arrays = {"task": options["task"], "unlabelled": unlabelled, **of_texts}
        if set_ := [k for k, v in of_arrays.items() if v]:
            raise InputError(f"{set_[0]} is for tables and arrays, and {path} returns a Source: leave it out")
        return data
    if isinstance(data, tuple) and len(data) in (2, 3):
        x, y, *clients = data
        owner = clients[0] if clients else None
        return from_arrays(x, y, clients=owner, task=options["task"], name=path, unlabelled=unlabelled, **of_texts)
    raise InputError(
        f"data {path} returns a {type(data).__name__}: let it return arrays (x, y) or (x, y, clients), a Source, a "
        "pandas DataFrame or a data set of datasets"
    )
