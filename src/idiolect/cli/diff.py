"""``idiolect diff``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from idiolect.cli.options import AsJson, conditions, option
from idiolect.cli.output import out_console, print_json
from idiolect.core.errors import InputError


def diff_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")],
    other: Annotated[
        str, typer.Argument(metavar="OTHER", help="Folder of another run, or a table such as fedpac/table1.")
    ],
    only: Annotated[
        str | None, option("Which of the table's cells, as for reproduce.", "the one most like the run")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Explain why two numbers differ: every setting, split, version or engine that differs, the likeliest cause first.

    Example: idiolect diff runs/digits runs/digits-2
    """
    from idiolect.reproduction import diff, diff_recipe, recipes

    mine = diff.of_run(run)
    if Path(other).is_dir() or other not in recipes.names():
        if only is not None:
            raise InputError(f"--only is for tables, and {other} is not a table: leave it out")
        if not Path(other).is_dir():
            raise InputError(f"there is no run folder {other} and no table {other}: idiolect list recipes has them all")
        theirs = diff.of_run(Path(other))
    else:
        recipe = recipes.get(other)
        mine, theirs = diff_recipe.of_recipe(recipe, recipes.select(recipe, conditions(only)), mine)
    differences = diff.compare(mine, theirs)
    if as_json:
        print_json(differences.as_json())
    else:
        for part in diff.render(differences):
            out_console.print(part)
