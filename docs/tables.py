"""Tables that stand in pages written by hand: settings, folders, checks of the contract, what a method works with."""

from __future__ import annotations

import ast
import inspect
import re
import tomllib
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path

from idiolect import methods
from idiolect.core.reports import PairValue
from idiolect.methods import _skeleton
from idiolect.reproduction import recipes
from idiolect.studies.settings import SETTINGS

TOP = Path(__file__).parents[1]
PACKAGE = TOP / "src" / "idiolect"
TUTORIAL = TOP / "docs" / "tutorials" / "method.md"
TYPES = {
    "Down": "core.method", "Up": "core.reduction", "Reduced": "core.reduction", "Data": "core.method",
    "Task": "core.method", "Training": "core.method", "Batch": "training.batches", "Personal": "training.client_state",
}  # fmt: skip
"""The types whose fields a method reads or fills, and their modules."""
RUNS, CONTRACT, CONTRIBUTING = TOP / "docs" / "runs.md", TOP / "docs" / "contract.md", TOP / "CONTRIBUTING.md"
REPRODUCE, REPORTS = TOP / "docs" / "reproduce.md", TOP / "docs" / "reports.md"


def pages() -> dict[Path, str]:
    """The pages by their paths, with their tables as they are now.

    Raises:
        ValueError: a page has no place for a table, or a folder is in no layer.
    """
    contract = None
    for what, lines in (
        ("imports", imports(_method_files())), ("imports of tests", imports([tutorial_code()], _method_files())),
        ("fields", fields()), ("keys", functions("idiolect.core.keys")), ("trees", functions("idiolect.core.tree")),
        ("building blocks", functions("idiolect.training")), ("checks", checks()),
    ):  # fmt: skip
        contract = with_table(CONTRACT, what, lines, contract)
    return {
        RUNS: with_table(RUNS, "settings", settings()),
        CONTRACT: contract or "",
        CONTRIBUTING: with_table(CONTRIBUTING, "folders", folders()),
        REPRODUCE: with_table(REPRODUCE, "tuned", tuned()),
        REPORTS: with_table(REPORTS, "drawn", drawn()),
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


def tuned() -> list[str]:
    """What each paper tuned, by its methods, with their names in the paper's tables."""
    rows = ["| paper | method | tunes | over | said in |", "| :-- | :-- | :-- | :-- | :-- |"]
    papers = {name.partition("/")[0]: recipes.get(name).tuned for name in recipes.names() if name.endswith("/table2")}
    for paper, said in papers.items():
        if isinstance(said, str):
            continue
        for method, each in said.values.items():
            whom = "all methods" if method == "all" else f"`{method}`"
            for name, values in each.items():
                over = ", ".join(f"{value:g}" for value in values)
                rows.append(f"| {methods.get(paper).title} | {whom} | `{name}` | {over} | {said.place} |")
    return rows


def drawn() -> list[str]:
    """What methods want a page to draw: the tables ``REPORTS`` of their files."""
    rows = ["| method | metric | what it is | what can be read off its figure |", "| :-- | :-- | :-- | :-- |"]
    for name in sorted(methods.ours()):
        entry = methods.get(name)
        for metric, report in entry.reports.items():
            pairs = isinstance(report, PairValue)
            what = f"of each two clients: {report.name}" if pairs else f"of each client: {report.meaning}"
            rows.append(f"| {entry.title} | `{metric}` | {cell(what)} | {cell(report.shows)} |")
    return rows


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


def _method_files() -> list[str]:
    """The text of every method's file and its parts, and of the skeleton's."""
    folder = Path(inspect.getsourcefile(_skeleton) or "").parent
    files = [file for name in methods.ours() for file in (folder / f"{name}.py", *sorted(folder.glob(f"_{name}_*.py")))]
    return [file.read_text() for file in (*files, folder / "_skeleton.py")]


def tutorial_code() -> str:
    """The Python of the tutorial that writes a method and its test."""
    return "\n".join(re.findall(r"^```python\n(.*?)^```$", TUTORIAL.read_text(), re.MULTILINE | re.DOTALL))


def imports(sources: Sequence[str], without: Sequence[str] = ()) -> list[str]:
    """What files import of idiolect: modules, what they are, and the names in them; not the modules of other files."""
    names: dict[str, set[str]] = {}
    known = {module for source in without for module, _ in _names(source)}
    for module, name in (pair for source in sources for pair in _names(source)):
        if module not in known:
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
                file = PACKAGE.parent.joinpath(*path.split("."))
                if file.with_suffix(".py").exists() or (file / "__init__.py").exists():
                    whole[alias.asname or alias.name] = path
                else:
                    out.append((node.module or "", alias.name))
    used = [n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)]
    return out + [(whole[n.value.id], n.attr) for n in used if isinstance(n.value, ast.Name) and n.value.id in whole]


def fields() -> list[str]:
    """The fields of the types that a method reads or fills, with their types and the first sentence about each."""
    out = ["| field | type | what it is |", "| :-- | :-- | :-- |"]
    for name, module in TYPES.items():
        node, about = _described(f"idiolect.{module}")[name]
        out.append(f"| **`{name}`** | | {cell(_sentence(about).removesuffix('.'))} |")
        for field, annotation, default, text in _fields(node):
            if not text:
                raise ValueError(f"{name}.{field} has no docstring: write one below it")
            kind = cell(f"`{annotation}`" + (f", else `{default}`" if default else ""))
            out.append(f"| `{field}` | {kind} | {cell(_sentence(text).removesuffix('.'))} |")
    return out


def functions(module: str) -> list[str]:
    """The public functions and classes of a module, or of those that a folder takes its names from."""
    sources = {module: None}
    if (file := _file(module)).name == "__init__.py":
        nodes = [n for n in ast.parse(file.read_text()).body if isinstance(n, ast.ImportFrom)]
        sources = {node.module or "": {alias.name for alias in node.names} for node in nodes}
    out = ["| | what it is |", "| :-- | :-- |"]
    for source, names in sources.items():
        for name, (node, about) in _described(source).items():
            if name in names if names is not None else name[0] != "_" and not isinstance(node, ast.Assign):
                out.append(f"| {cell(f'`{_signature(name, node)}`')} | {cell(_sentence(about).removesuffix('.'))} |")
    return out


def _file(module: str) -> Path:
    path = PACKAGE.parent.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _described(module: str) -> dict[str, tuple[ast.stmt, str]]:
    """The functions, classes and documented names of a module, each with its docstring."""
    body, out = ast.parse(_file(module).read_text()).body, dict[str, tuple[ast.stmt, str]]()
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            out[node.name] = node, ast.get_docstring(node) or ""
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            out[node.targets[0].id] = node, _text(after)
    return out


def _text(node: ast.stmt | None) -> str:
    """The docstring that a statement is, or none."""
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return inspect.cleandoc(node.value.value) if is_text else ""  # type: ignore[union-attr]


def _fields(node: ast.stmt) -> Iterator[tuple[str, str, str, str]]:
    """The fields of a class: name, type, default and docstring."""
    body = node.body if isinstance(node, ast.ClassDef) else []
    for one, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(one, ast.AnnAssign):
            default = "" if one.value is None else _default(one.value)
            yield ast.unparse(one.target), ast.unparse(one.annotation), default, _text(after)


def _default(node: ast.expr) -> str:
    """A default; ``X()`` for ``field(default_factory=X)``, and the value of a tensor."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "field":
        return f"{ast.unparse(node.keywords[0].value)}()"
    return "0" if "zeros" in ast.unparse(node) or ast.unparse(node) == "_ROUND" else ast.unparse(node)


def _signature(name: str, node: ast.stmt) -> str:
    if isinstance(node, ast.FunctionDef):
        every = re.sub(r"(: [^=]*?)=", r"\1 = ", ast.unparse(node.args))  # as ruff writes defaults
        return f"{name}({every}) -> {ast.unparse(node.returns) if node.returns else 'None'}"
    if isinstance(node, ast.ClassDef):
        parts = [f"{field}: {kind}" + (f" = {default}" if default else "") for field, kind, default, _ in _fields(node)]
        return f"{name}({', '.join(parts)})"
    return ast.unparse(node)


def checks() -> list[str]:
    """The checks of the contract, in their order, with the first paragraph of what each says of itself."""
    tree = ast.parse((TOP / "tests" / "contract" / "checks.py").read_text())
    out = ["| check | what it asks for |", "| :-- | :-- |"]
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name[0] != "_":
            text = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
            out.append(f"| `{node.name}` | {cell(text).removesuffix('.')} |")
    return out
