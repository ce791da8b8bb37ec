"""Options of the command line: those made from the table of settings, and those that several commands have."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from idiolect.core.errors import InputError, in_a_file, nearest
from idiolect.core.files import about_backslashes
from idiolect.studies.settings import DATA, DEFENCE, METHODS, OUTPUT, PARTITION, SETTINGS, SHIFTS, TRAINING

COMMON, SEARCH, ENGINE = "Most used", "Search", "Engine"
USUAL_ENGINE = "auto"
_PANELS = (COMMON, SEARCH, METHODS, DATA, PARTITION, SHIFTS, TRAINING, DEFENCE, ENGINE, OUTPUT)


def option(help: str, default: str = "", *names: str, metavar: str | None = None, panel: str | None = None) -> Any:
    """An option whose help ends with its default in brackets."""
    help += rf" [dim]\[{default}][/]" if default else ""
    return typer.Option(*names, help=help, show_default=False, metavar=metavar, rich_help_panel=panel)


def flag(name: str, help: str, panel: str | None = None) -> Any:
    """An option without a value."""
    return option(help, "", f"--{name}", panel=panel)


class RecipeForm(StrEnum):
    """What ``--export`` writes of a recipe."""

    latex = "latex"
    csv = "csv"
    png = "png"


StudyFile = Annotated[
    Path | None,
    typer.Argument(metavar="STUDY.yaml", help="A study; options override its settings.", show_default=False),
]
Workers = Annotated[int | None, option("Worker processes.", "one per core", panel=ENGINE)]
Track = Annotated[
    list[str] | None,
    option(
        "Also tell tensorboard, mlflow or wandb what is measured, as tensorboard:DIR, mlflow:URI or wandb:PROJECT; "
        "repeat.",
        metavar="TRACKER",
        panel=OUTPUT,
    ),
]
AllowImport = Annotated[
    bool,
    flag(
        "allow-import",
        "Allow what is read (a study file, a run, a bundle) to name code by its import path; this code is run.",
        ENGINE,
    ),
]
Quiet = Annotated[bool, flag("quiet", "Show no progress.", OUTPUT)]
AsJson = Annotated[bool, flag("json", "Print the table as JSON.", OUTPUT)]


class Command(TyperCommand):
    """A command that lists ``--help`` among its other options, not in a separate panel above them."""

    def invoke(self, ctx: Any) -> Any:
        """Run it.

        Raises:
            InputError: a path has backslashes, which do not separate folders here.
        """
        for parameter in self.params:
            if getattr(parameter.type, "name", "") in ("path", "file", "directory"):
                value = ctx.params.get(parameter.name)
                for path in value if isinstance(value, list | tuple) else [value]:
                    if backslashes := about_backslashes(path or ""):
                        raise InputError(f"{parameter.get_error_hint(ctx).strip(chr(39))} {path}: {backslashes}")
        with in_a_file(self._file_settings()):
            return super().invoke(ctx)

    def _file_settings(self) -> dict[str, str]:
        """The settings that this command takes from a study's file alone, by the names of their options elsewhere."""
        own = {parameter.name: parameter for parameter in self.params}
        if "study" not in own or getattr(own["study"].type, "name", "") != "path":
            return {}
        return {s.option or name: name for name, s in SETTINGS.items() if (s.option or name) not in own}

    def get_help_option(self, ctx: Any) -> Any:
        """The option."""
        parameter: Any = super().get_help_option(ctx)
        if parameter is not None:
            parameter.rich_help_panel = OUTPUT
        return parameter


class Group(TyperGroup):
    """Commands. An unknown one is told once, with a near one: versions of typer and click tell it differently."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the first argument names."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            path = " ".join([*ctx.command_path.split()[1:], args[0]])
            raise InputError(f"unknown command {path!r}; {nearest(args[0], self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)


def with_settings(names: Iterable[str]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for each of these settings; it gets those that the user gives as ``settings``."""
    options = {name: _option_of(name) for name in names}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True).parameters.values()
        every = sorted([*options.values(), *(p for p in own if p.name != "settings")], key=_panel)

        @wraps(command)
        def command_with_settings(**arguments: Any) -> None:
            values = {name: arguments.pop(parameter.name) for name, parameter in options.items()}
            settings = {k: str(v) if isinstance(v, Path) else v for k, v in values.items() if v is not None}
            command(settings=settings, **arguments)

        command_with_settings.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
        command_with_settings.__annotations__ = {p.name: p.annotation for p in every}
        return command_with_settings

    return decorate


def _option_of(name: str) -> inspect.Parameter:
    setting = SETTINGS[name]
    long_name = setting.option or name
    flag_name = f"--{long_name.replace('_', '-')}"
    switch = setting.type is bool
    annotation_value = option(
        setting.about,
        "" if switch else setting.shown,
        f"{flag_name}/--no{flag_name[1:]}" if switch else flag_name,
        metavar=setting.metavar or ("<str>" if setting.repeat else None),
        panel=COMMON if setting.common else setting.group,
    )
    kind: Any = list[str] if setting.repeat else setting.type
    annotation = Annotated[kind | None, annotation_value]
    return inspect.Parameter(long_name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=annotation)


def _panel(parameter: inspect.Parameter) -> int:
    """Its place in help; arguments come first."""
    [about] = parameter.annotation.__metadata__
    return _PANELS.index(about.rich_help_panel) if about.rich_help_panel else -1


def conditions(text: str | None) -> dict[str, str]:
    """The ``KEY=VALUE`` pairs of ``--only``."""
    pairs = [piece.partition("=") for piece in (text or "").split(",") if piece.strip()]
    if piece := next((k for k, equals, _ in pairs if not equals), None):
        raise InputError(
            f"--only {text}: cannot read {piece!r}; write KEY=VALUE,KEY=VALUE, for example dataset=cifar10"
        )
    values = {k.strip(): v.strip() for k, _, v in pairs}
    if len(values) < len(pairs):
        raise InputError(f"--only {text}: a key is given twice; write its values with +, for example clients=20+100")
    return values
