"""``idiolect list``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from idiolect.cli.options import flag, option
from idiolect.cli.output import err_console, out_console, print_json, say
from idiolect.core.defaults import USUAL_CLIENTS
from idiolect.core.errors import InputError, RunError, nearest
from idiolect.core.option_spec import plain
from idiolect.core.terminal import Text
from idiolect.studies.settings import SETTINGS

if TYPE_CHECKING:
    from idiolect.methods import Entry

_MODEL, _DATASET = SETTINGS["model"].shown, SETTINGS["dataset"].shown


class Kind(StrEnum):
    """What ``idiolect list`` lists."""

    methods = "methods"
    datasets = "datasets"
    partitions = "partitions"
    shifts = "shifts"
    models = "models"
    engines = "engines"
    recipes = "recipes"


def list_command(
    kind: Annotated[Kind, typer.Argument(help="What to list.", show_default=False)],
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Only these; a method of your own as my_module.my_method.", show_default=False),
    ] = None,
    as_json: Annotated[bool, flag("json", "Print it as JSON; for methods with what they send, keep and need.")] = False,
    model: Annotated[str | None, option("Count the bytes of methods for this network.", _MODEL)] = None,
    dataset: Annotated[str | None, option("Count them for the shape and classes of this data set.", _DATASET)] = None,
    personal: Annotated[
        str | None, option("Weights that stay at each client, for methods as JSON.", metavar="PATTERN")
    ] = None,
) -> None:
    """List what there is, with options and defaults.

    Example: idiolect list methods --json --dataset cifar10
    """
    if (model or dataset or personal) and not (kind is Kind.methods and as_json):
        raise InputError("--model, --dataset and --personal are for idiolect list methods --json: leave them out")
    entries = _named_methods(names) if names and kind is Kind.methods else _LISTS[kind]()
    if unknown := [name for name in names or () if name not in entries]:
        raise InputError(f"unknown {kind.removesuffix('s')} {unknown[0]!r}; {nearest(unknown[0], entries)}")
    entries = {name: entries[name] for name in names} if names else entries
    if as_json:
        if kind is Kind.methods:
            entries = _with_anatomy(entries, model or _MODEL, dataset or _DATASET, personal)
        print_json(entries)
        return
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    for name, entry in entries.items():
        lines = [Text(entry["summary"])]
        if "cells" in entry:
            lines.append(
                Text(f"{entry['cells']} cells, {entry['runs']} runs" if entry["cells"] else entry["kind"], style="dim")
            )
        if options := entry.get("options"):
            lines.append(Text(", ".join(f"{k}={plain(v)}" for k, v in options.items()), style="dim"))
        lines += [
            Text(f"preset={preset}: " + ", ".join(f"{k}={plain(v)}" for k, v in values.items()), style="dim")
            for preset, values in entry.get("presets", {}).items()
        ]
        lines += [
            Text(
                f"{title} is {name}"
                + "".join(f"{',' if i else ':'}{k}={plain(v)}" for i, (k, v) in enumerate(values.items())),
                style="dim",
            )
            for title, values in entry.get("variants", {}).items()
        ]
        table.add_row(Text(name, style="bold"), Text("\n").join(lines))
    out_console.print(table)


def _first_line(documented: Any) -> str:
    return (documented.__doc__ or "").strip().partition("\n")[0].replace("``", "")


_BY_DATA = "from the data"


def _functions(functions: dict[str, Any]) -> dict[str, dict[str, Any]]:
    from idiolect.core.option_spec import options_of

    return {
        name: {
            "summary": _first_line(function),
            "options": {k: _BY_DATA if p.default is p.empty else p.default for k, p in options_of(function).items()},
        }
        for name, function in functions.items()
    }


def _methods() -> dict[str, dict[str, Any]]:
    from idiolect import methods

    entries, broken = methods.working()
    for sentence in broken:
        say(err_console, f"idiolect: {sentence}")
    return _about(entries)


def _named_methods(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    from idiolect import methods

    return _about({name: methods.get(name) for name in names})


def _about(entries: Mapping[str, Entry]) -> dict[str, dict[str, Any]]:
    return {
        name: {
            "title": e.title,
            "summary": f"{e.title}: {e.summary}",
            "options": e.options,
            "presets": e.presets,
            "variants": e.variants,
        }
        for name, e in entries.items()
    }


def _with_anatomy(
    entries: dict[str, dict[str, Any]], model: str, dataset: str, personal: str | None
) -> dict[str, dict[str, Any]]:
    """What each method sends, keeps and needs: with its defaults, and where a variant differs.

    None, and a sentence, for one that fails or cannot take ``personal``.
    """
    from idiolect import data, models
    from idiolect.core import tree
    from idiolect.core.keys import key
    from idiolect.methods import profile
    from idiolect.training.personal_weights import names_of

    about = data.describe(dataset)
    shape, classes, clients = tuple(about["shape"]), about["classes"], USUAL_CLIENTS
    model = models.choose(model, shape)
    network = models.build(model, shape, classes)
    basis = {"dataset": dataset, "model": model, "weights": sum(w.numel() for w in tree.leaves(network.init(key(0))))}

    basis = basis | {"clients": clients}
    if personal is not None:
        names_of(personal, network)  # an error of the pattern is no method's
        basis["personal"] = personal

    def of(name: str, options: dict[str, Any]) -> dict[str, Any] | None:
        try:
            return profile.of(name, options, network, classes, clients, personal_weights=personal).as_json()
        except RunError as error:
            say(err_console, f"idiolect: {error}; fix it, or uninstall its package")
        except InputError as error:
            if personal is None or len(entries) == 1:
                raise
            say(err_console, f"idiolect: {error}")
        return None

    def entry(name: str, listing: dict[str, Any]) -> dict[str, Any]:
        mine = of(name, {})
        variants = {
            t: {"options": o, "anatomy": mine if listing["options"] | o == listing["options"] else of(name, o)}
            for t, o in listing["variants"].items()
        }
        return listing | {"variants": variants, "counted_for": basis, "anatomy": mine}

    return {name: entry(name, listing) for name, listing in entries.items()}


def _datasets() -> dict[str, dict[str, Any]]:
    from idiolect import data

    def entry(name: str) -> dict[str, Any]:
        about = data.describe(name)
        counts = f"{about['train_rows']:,} + {about['test_rows']:,}" if about["test_rows"] else f"{about['rows']:,}"
        summary = f"{about['title']}; {counts} samples, {about['classes']} classes; {about['source']}"
        return {"summary": summary} | about

    return {name: entry(name) for name in data.names()}


def _partitions() -> dict[str, dict[str, Any]]:
    from idiolect import data

    return _functions(data.PARTITIONS)


def _shifts() -> dict[str, dict[str, Any]]:
    from idiolect import data

    entries = _functions(data.SHIFTS)
    return {name: entry | {"options": entry["options"] | {"clients": "all"}} for name, entry in entries.items()}


def _models() -> dict[str, dict[str, Any]]:
    from idiolect import models

    auto = {"summary": "The papers' network for the data; else resnet18, small_cnn, har_cnn, embedding_mean or mlp."}
    return {"auto": auto} | _functions(models.NETWORKS)


def _engines() -> dict[str, dict[str, Any]]:
    from idiolect import engines

    auto = {"summary": "Processes; sequential on one core and on Windows. Never vectorised: give it for a GPU."}
    return {"auto": auto} | _functions(engines.ENGINES)


def _recipes() -> dict[str, dict[str, Any]]:
    from idiolect.reproduction import recipes, seed_runs

    def entry(name: str) -> dict[str, Any]:
        recipe = recipes.get(name)
        to_run = {seed_runs.digest(c.study) for c in recipe.cells if c.study}
        return {"summary": recipe.title, "kind": recipe.kind, "cells": len(recipe.cells), "runs": len(to_run)}

    return {name: entry(name) for name in recipes.names()}


_LISTS = {
    Kind.methods: _methods,
    Kind.datasets: _datasets,
    Kind.partitions: _partitions,
    Kind.shifts: _shifts,
    Kind.models: _models,
    Kind.engines: _engines,
    Kind.recipes: _recipes,
}
