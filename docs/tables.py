"""Tables that stand in pages written by hand: settings, folders, imports of a method file, checks of the contract."""

from __future__ import annotations

import ast
import inspect
import re
import tomllib
from importlib import import_module
from pathlib import Path

from idiolect import methods
from idiolect.methods import _skeleton
from idiolect.studies.settings import SETTINGS

TOP = Path(__file__).parents[1]
PACKAGE = TOP / "src" / "idiolect"
RUNS, CONTRACT, CONTRIBUTING = TOP / "docs" / "runs.md", TOP / "docs" / "contract.md", TOP / "CONTRIBUTING.md"


def pages() -> dict[Path, str]:
    """The pages by their paths, with their tables as they are now.

    Raises:
        ValueError: a page has no place for a table, or a folder is in no layer.
    """
    contract = with_table(CONTRACT, "imports", imports())
    return {
        RUNS: with_table(RUNS, "settings", settings()),
        CONTRACT: with_table(CONTRACT, "checks", checks(), contract),
        CONTRIBUTING: with_table(CONTRIBUTING, "folders", folders()),
    }


def with_table(page: Path, what: str, lines: list[str], text: str | None = None) -> str:
    """A page's text with these lines between the comments that say what they are."""
    place = re.compile(rf"(<!-- {what}: [^\n]* -->\n).*?(<!-- end of {what} -->\n)", re.DOTALL)
    text, count = place.subn(
        lambda mark: mark[1] + "\n".join(lines) + "\n" + mark[2], page.read_text() if text is None else text
    )
    if count != 1:
        raise ValueError(f"{page.name} has {count} places for the table of {what}")
    return text


def cell(text: str) -> str:
    """A text within a table."""
    return text.replace("``", "`").replace("|", "\\|")


def settings() -> list[str]:
    """All settings of a study."""
    out, group = ["| setting | option | | default |", "| :-- | :-- | :-- | :-- |"], ""
    for name, setting in SETTINGS.items():
        if setting.group != group:
            group = setting.group
            out.append(f"| **{group}** | | | |")
        written = name if setting.option is None else setting.option
        option = f"`--{written.replace('_', '-')}`" if written else "in a file only"
        default = setting.unset or (f"`{setting.shown}`" if setting.shown else "")
        out.append(f"| `{name}` | {option} | {cell(setting.about)} | {default} |")
    return out


def folders() -> list[str]:
    """The folders of the package, from the highest layer of the import linter to the lowest, with what they are for."""
    out = ["| folder | what it is for |", "| :-- | :-- |"]
    contracts = tomllib.loads((TOP / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = {
        container: [part.strip() for layer in contract["layers"] for part in layer.split("|")]
        for contract in contracts
        if contract["type"] == "layers"
        for container in contract.get("containers", [""])
    }
    for layer in layers[""]:
        folder = PACKAGE / layer.removeprefix("idiolect.")
        rooms = [folder / room for room in layers.get(layer, [])] or sorted(folder.iterdir())
        rooms = [room for room in rooms if (room / "__init__.py").exists()]
        out.append(f"| **`{folder.name}/`** | {cell(_purpose(folder))} |")
        out += [f"| `{folder.name}/{room.name}/` | {cell(_purpose(room))} |" for room in rooms]
    absent = {p.parent.name for p in PACKAGE.glob("*/__init__.py")} - {x.rpartition(".")[2] for x in layers[""]}
    if absent:
        raise ValueError(f"pyproject.toml has no layer for {', '.join(sorted(absent))}: add it to the import linter's")
    return out


def _purpose(folder: Path) -> str:
    """The first sentence of its docstring."""
    doc = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    return _sentence(doc).removesuffix(".")


def _sentence(doc: str) -> str:
    return re.split(r"(?<=\.)\s", " ".join(doc.split("\n\n")[0].split()))[0]


def imports() -> list[str]:
    """What method files import of idiolect: modules, what they are, and the names in them."""
    names: dict[str, set[str]] = {}
    files = [inspect.getsourcefile(methods.get(name).build) or "" for name in methods.ours()]
    for file in (*files, inspect.getsourcefile(_skeleton) or ""):
        for module, name in _names(Path(file).read_text()):
            names.setdefault(module, set()).add(name)
    out = ["| module | what it is | names |", "| :-- | :-- | :-- |"]
    for name in sorted(names):
        module = import_module(name)
        listed = sorted(getattr(module, "__all__", names[name]), key=lambda n: (n.lower(), n))
        about = cell(_sentence(inspect.getdoc(module) or "").removesuffix("."))
        cells = f"`{name}`", about, ", ".join(f"`{n}`" for n in listed)
        out.append(f"| {' | '.join(cells)} |")
    return out


def _names(source: str) -> list[tuple[str, str]]:
    """The modules of idiolect that a file imports from, with each name; of a module imported whole, what is used."""
    tree = ast.parse(source)
    out, whole = list[tuple[str, str]](), dict[str, str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "idiolect":
            for alias in node.names:
                path = f"{node.module}.{alias.name}"
                if PACKAGE.parent.joinpath(*path.split(".")).with_suffix(".py").exists():
                    whole[alias.asname or alias.name] = path
                else:
                    out.append((node.module or "", alias.name))
    used = [n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)]
    return out + [(whole[n.value.id], n.attr) for n in used if isinstance(n.value, ast.Name) and n.value.id in whole]


def checks() -> list[str]:
    """The checks of the contract, in their order, with the first paragraph of what each says of itself."""
    tree = ast.parse((TOP / "tests" / "contract" / "checks.py").read_text())
    out = ["| check | what it asks for |", "| :-- | :-- |"]
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name[0] != "_":
            text = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
            out.append(f"| `{node.name}` | {cell(text).removesuffix('.')} |")
    return out
