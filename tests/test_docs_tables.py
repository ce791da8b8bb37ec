"""What pages list by hand, or by docs/tables.py, is what the code has."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import tomllib
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer

from idiolect import methods, training
from idiolect.cli import app
from idiolect.core import keys, tree
from idiolect.core.method import Data, Down, Method, Reduced, Task, Training, Up
from idiolect.core.option_spec import plain, scalar
from idiolect.core.version import __version__
from idiolect.data.partitions import PARTITIONS
from idiolect.data.shifts import SHIFTS
from idiolect.engines import ENGINES
from idiolect.models import NETWORKS
from idiolect.simulation.attacks import ATTACKS
from idiolect.simulation.robust import RULES
from idiolect.simulation.uploads import STEPS

sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))

import tables

ROOT = Path(__file__).parents[1]

ELSEWHERE = ("clients",)  # of every shift, in a sentence below the table


def between(page: str, what: str) -> str:
    text = (ROOT / page).read_text()
    [(_, table)] = re.findall(rf"(<!-- {what}: .*? -->)\n(.*?)<!-- end of {what} -->", text, re.DOTALL)
    return str(table)


def section(page: str, title: str) -> str:
    text = (ROOT / "docs" / page).read_text()
    [body] = re.findall(rf"^(?:##+ {title}\n)(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    return str(body)


def test_the_table_of_folders_has_every_folder_in_the_order_of_its_layers() -> None:
    rows = re.findall(r"^\| (?:\*\*)?`(.*?)/`", between("CONTRIBUTING.md", "folders"), re.MULTILINE)
    package = ROOT / "src" / "idiolect"
    assert sorted(rows) == sorted(p.parent.relative_to(package).as_posix() for p in package.glob("**/*/__init__.py"))
    layers = re.findall(r'^  "idiolect\.(\w+)(?: \| idiolect\.(\w+))?"', (ROOT / "pyproject.toml").read_text(), re.M)
    assert [row for row in rows if "/" not in row] == [name for layer in layers for name in layer if name]
    rooms = [row.partition("/")[2] for row in rows if row.startswith("federation/")]
    assert rooms.index("server") < rooms.index("secure_aggregation") < rooms.index("link") < rooms.index("trust")


def test_a_folder_without_a_layer_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        (ROOT / "pyproject.toml").read_text().replace('  "idiolect.deploy",\n', "")
    )
    monkeypatch.setattr(tables, "TOP", tmp_path)
    with pytest.raises(ValueError, match=r"^pyproject.toml has no layer for deploy: add it"):
        tables.folders()


def test_the_table_of_imports_has_what_method_files_import() -> None:
    """Found here in the text of the files, there in their syntax."""
    rows = dict(
        re.findall(r"^\| `(idiolect\.[\w.]+)` \| .*? \| (`.*) \|$", between("docs/contract.md", "imports"), re.M)
    )
    others = ("__init__.py", "registry.py", "profile.py")
    files = [p for p in (ROOT / "src/idiolect/methods").glob("*.py") if p.name not in others]
    text = "\n".join(p.read_text() for p in files)
    lines = re.findall(r"^from (idiolect\.[\w.]+) import (\([^)]*\)|.*)$", text, re.MULTILINE)
    assert len(lines) > 50
    for module, names in lines:
        for name in re.findall(r"\w+", names):
            listed = rows.get(module, "")
            assert f"`{name}`" in listed or f"{module}.{name}" in rows, f"{module} import {name}"
    assert {module for module, _ in lines} - {"idiolect.statistics"} <= set(rows)


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("from idiolect.core.errors import InputError, nearest as near\n", ["InputError", "nearest"]),
        ("from idiolect.statistics import covariance\ncovariance.pack(1)\nother.pack(2)\n", ["pack"]),
        ("from idiolect.statistics import mixture as mix\nx: mix.Mixture = mix.fit()\n", ["Mixture", "fit"]),
        ("import torch\nfrom torch import nn\nnn.Linear\n", []),
    ],
)
def test_imports_are_read(source: str, names: list[str]) -> None:
    assert [name for _, name in tables._names(source)] == names


def test_the_table_of_checks_has_the_checks_that_have_specimens() -> None:
    rows = re.findall(r"^\| `(\w+)` \| \S", between("docs/contract.md", "checks"), re.MULTILINE)
    specimens = (ROOT / "tests/contract/specimens.py").read_text()
    [table] = re.findall(r"^SPECIMENS\b.*?^\}", specimens, re.DOTALL | re.MULTILINE)
    assert sorted(rows) == sorted(re.findall(r'^ {4}"(\w+)":', table, re.MULTILINE))


FIELDS = (Down, Up, Reduced, Data, Task, Training, training.Batch, training.Personal)


def test_the_table_of_fields_has_those_of_every_type_and_their_defaults() -> None:
    row = r"^\| (\*{0,2})`(\w+)`\*{0,2} \|(.*?)(?<!\\)\| \S.* \|$"
    rows = re.findall(row, between("docs/contract.md", "fields"), re.MULTILINE)
    fields, of = dict[str, dict[str, str]](), ""
    for is_type, name, kind in rows:
        if is_type:
            of = name
        else:
            fields.setdefault(of, {})[name] = kind
    assert set(fields) == {kind.__name__ for kind in FIELDS}
    for kind in FIELDS:
        there = inspect.signature(kind).parameters
        assert list(fields[kind.__name__]) == list(there)
        optional = {name for name, text in fields[kind.__name__].items() if ", else `" in text}
        assert optional == {name for name, one in there.items() if one.default is not one.empty}


@pytest.mark.parametrize(
    ("what", "module", "names"),
    [
        ("building blocks", training, training.__all__),
        ("keys", keys, None),
        ("trees", tree, None),
    ],
)
def test_the_tables_of_functions_have_their_parameters(what: str, module: Any, names: list[str] | None) -> None:
    """As the interpreter sees them; there they are read from the text of the files."""
    rows = dict(re.findall(r"^\| `(\w+)(.*?)` \| \S.* \|$", between("docs/contract.md", what), re.MULTILINE))
    public = [
        name
        for name, one in vars(module).items()
        if inspect.isfunction(one) and one.__module__ == module.__name__ and name[0] != "_"
    ]
    public += ["constant"] * (module is tree)  # cached, so it is no plain function
    assert sorted(rows) == sorted(names or public)
    for name, text in rows.items():
        one = getattr(module, name)
        if inspect.isfunction(one):
            written = [p for p in inspect.signature(one).parameters if not re.search(rf"[(, *]{p}[:,)]", text)]
            assert written == [], f"{name}{text}"


def test_a_field_without_a_docstring_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "TYPES", {"SGD": "core.method"})
    with pytest.raises(ValueError, match=r"^SGD.lr has no docstring: write one below it$"):
        tables.fields()


def test_what_a_test_of_a_method_imports_besides_is_listed() -> None:
    rows = re.findall(
        r"^\| `(idiolect[\w.]*)` \| \S.*? \| (.*) \|$", between("docs/contract.md", "imports of tests"), re.M
    )
    mine = between("docs/contract.md", "imports")
    assert [module for module, _ in rows] == ["idiolect.core.reduction"]
    assert all(f"| `{module}` |" not in mine for module, _ in rows)
    code = (ROOT / "docs/tutorials/method.md").read_text()
    for module in set(re.findall(r"^from (idiolect\.[\w.]+) import", code, re.MULTILINE)):
        assert f"| `{module}` |" in mine or module in dict(rows), module


@pytest.mark.parametrize("text", ["", "<!-- settings: a -->\n", "<!-- settings: a -->\n<!-- end of settings -->\n" * 2])
def test_a_page_without_one_place_for_a_table_is_an_error(text: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(ValueError, match=r"^page.md has [02] places for the table of settings$"):
        tables.with_table(page, "settings", ["| a |"])


def test_a_table_is_put_between_its_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- x: b -->\nold\n<!-- end of x -->\n<!-- y: c -->\nold\n<!-- end of y -->\nz\n")
    text = tables.with_table(page, "x", ["1", "2"])
    text = tables.with_table(page, "y", [r"\1"], text)
    assert text == "a\n<!-- x: b -->\n1\n2\n<!-- end of x -->\n<!-- y: c -->\n\\1\n<!-- end of y -->\nz\n"


def options(function: Callable[..., Any]) -> dict[str, Any]:
    return {p.name: p.default for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY}


@pytest.mark.parametrize(("title", "known"), [("Partitions", PARTITIONS), ("Shifts", SHIFTS)])
def test_a_table_of_the_page_of_data_has_every_name_option_and_default(
    title: str, known: Mapping[str, Callable[..., Any]]
) -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \|(.*)\|$", section("data.md", title), re.MULTILINE))
    assert sorted(rows) == sorted(known)
    for name, function in known.items():
        column = rows[name].split("|")[1]
        listed = dict(re.findall(r"`(\w+)(?:=([^`]+))?`", column))
        has = {option: value for option, value in options(function).items() if option not in ELSEWHERE}
        assert set(has) <= set(listed), name
        for option, value in has.items():
            assert listed[option] == ("" if value is None else plain(value)), f"{name}: {option}"
    assert title != "Partitions" or {n for n, row in rows.items() if row.split("|")[2].strip() == "yes"} == {
        n for n, f in known.items() if "sizes_K" in inspect.signature(f).parameters
    }


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("robustness.md", [*RULES, *ATTACKS]), ("contract.md", [*STEPS]), ("engines.md", [*ENGINES]),
        ("contract.md", [*Method._fields]), ("data.md", ["fmnist_cnn", "cifar_cnn", "resnet18", "small_cnn", "mlp"]),
    ],
)  # fmt: skip
def test_a_page_names_all_of_a_kind(page: str, names: list[str]) -> None:
    text = (ROOT / "docs" / page).read_text()
    assert [name for name in names if not re.search(rf"`{name}\b", text)] == []
    assert page != "data.md" or set(names) <= set(NETWORKS)


def value(path: str) -> Any:
    """What an import path names; None if it is not there."""
    module, rest = path, list[str]()
    while module:
        try:
            out = import_module(module)
        except ImportError:
            module, _, name = module.rpartition(".")
            rest.insert(0, name)
            continue
        for name in rest:
            out = out.__dict__.get("__dataclass_fields__", {}).get(name) or getattr(out, name, None)
        return out
    return None


@pytest.mark.parametrize(
    ("path", "there"),
    [
        ("idiolect.core.keys", True),
        ("idiolect.Study.task_of", True),
        ("idiolect.core.keys.nothing", False),
        ("x.y", False),
    ],
)
def test_paths_are_looked_up(path: str, there: bool) -> None:
    assert (value(path) is not None) is there


PAGES = [p for p in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")) if p.name != "CHANGELOG.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_import_paths_on_a_page_exist(page: Path) -> None:
    text = page.read_text().replace("`idl.", "`idiolect.")
    paths = re.findall(r"`(idiolect(?:\.[A-Za-z_]\w*)+)", text) + re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE)
    assert [path for path in paths if value(path) is None] == []


def test_scripts_on_a_page_exist_and_find_what_they_import() -> None:
    texts = [page.read_text() for page in PAGES]
    names = {
        name
        for text in texts
        for name in re.findall(r"\b((?:benchmarks|docs|examples|tests)/[\w/]+\.(?:py|yaml))", text)
    }
    assert len(names) > 50
    assert [name for name in names if not (ROOT / name).exists()] == []
    for script in [*(ROOT / "benchmarks").glob("*.py"), *(ROOT / "docs").glob("*.py")]:
        for node in ast.walk(ast.parse(script.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("idiolect"):
                for alias in node.names:
                    assert value(f"{node.module}.{alias.name}") is not None, (
                        f"{script.name}: {node.module}.{alias.name}"
                    )


FOREIGN = "pip|python|ray|tensorboard|flwr |flower-"  # programs of others


def known_options(command: Any) -> set[str]:
    parts = [known_options(part) for part in getattr(command, "commands", {}).values()]
    return {"--help"}.union(
        *(param.opts for param in command.params), *(p.secondary_opts for p in command.params), *parts
    )


def unknown_options(text: str) -> list[str]:
    """Options in sentences that no command has, but for those of other programs; blocks are parsed elsewhere."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    codes = [code for code in re.findall(r"`([^`\n]+)`", prose) if not re.match(FOREIGN, code)]
    options = known_options(typer.main.get_command(app))
    return [o for code in codes for o in re.findall(r"(?<![\w-])--[a-z][\w-]*", code) if o not in options]


def test_unknown_options_are_seen() -> None:
    text = (
        "`--rounds 3`, `--no-such`, `idiolect serve --out a --lisen b`, `pip install --editable .`, "
        "`flower-supernode --port 1` and `flwr run app --stream`\n```\n--x\n```\n"
    )
    assert unknown_options(text) == ["--no-such", "--lisen"]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_options_in_sentences_exist(page: Path) -> None:
    assert unknown_options(page.read_text()) == []


def test_members_of_the_reference_exist() -> None:
    count = 0
    for page in (ROOT / "docs" / "reference").glob("*.md"):
        for path, members in re.findall(r"^::: ([\w.]+)\n(?: {4}.*\n)*? +members: \[(.*)\]", page.read_text(), re.M):
            for name in members.split(", "):
                count += 1
                assert value(f"{path}.{name}") is not None or name in value(path).model_fields, (
                    f"{page.name}: {path}.{name}"
                )
    assert count > 15


def test_the_page_of_training_names_all_that_methods_share() -> None:
    table = [row for row in (ROOT / "docs/reference/training.md").read_text().splitlines() if row.startswith("| ")]
    names = {name for row in table for name in re.findall(r"`(\w+)`", row)}
    assert names == set(training.__all__)


def test_what_methods_want_drawn_is_on_the_page_of_reports() -> None:
    rows = {tuple(row.strip("| ").split(" | ")[:2]) for row in between("docs/reports.md", "drawn").splitlines()[2:]}
    entries = [methods.get(name) for name in methods.ours()]
    assert rows == {(entry.title, f"`{metric}`") for entry in entries for metric in entry.reports}


def test_the_presets_of_the_page_of_fidelity_are_those_of_the_methods() -> None:
    rows = re.findall(r"^\| `(\w+)\.preset=(\w+)` \| (.*) \|$", section("fidelity.md", "Presets"), re.MULTILINE)
    four = [methods.get(name) for name in ("fedlda", "fedpac", "pfedfda", "fedcr")]
    assert sorted((n, preset) for n, preset, _ in rows) == sorted(
        (m.name, preset) for m in four for preset in m.presets
    )
    for name, preset, text in rows:
        listed = {k: scalar(v) for k, v in re.findall(r"`(\w+)=([^`]+)`", text)}
        listed |= {k: None for k in re.findall(r"no `(\w+)`", text)}
        assert listed == methods.get(name).presets[preset], f"{name}.preset={preset}"


@pytest.mark.parametrize(
    ("title", "name"), [("FedLDA", "fedlda"), ("FedPAC", "fedpac"), ("pFedFDA", "pfedfda"), ("FedCR", "fedcr")]
)
def test_options_in_the_tables_of_fidelity_exist(title: str, name: str) -> None:
    rows = [row.split(" | ") for row in section("fidelity.md", title).splitlines() if row.startswith("| ")]
    listed = {option for row in rows for option in re.findall(r"`(\w+)", row[-1])}
    assert len(listed) > 3
    assert listed <= set(methods.get(name).options)


def test_the_methods_of_a_federation_are_those_of_its_test() -> None:
    trained = re.findall(r'^_METHODS = "(.*)"', (ROOT / "tests/federation/test_processes.py").read_text(), re.MULTILINE)
    [sentence] = re.findall(
        r"a test trains (.*?) at five\s+sites", section("federation.md", "Rounds that go on"), re.DOTALL
    )
    titles = [methods.get(name).title for name in ", ".join(trained).split(", ")]
    assert sorted(re.split(r",\s+|\s+and\s+", sentence)) == sorted(titles)


def test_what_strangers_can_do_is_what_the_server_bounds() -> None:
    exchange = pytest.importorskip("idiolect.federation.link.exchange", reason="needs the extra federation")
    from idiolect.federation.link.web import Limits

    rows = dict(re.findall(r"^\| (.*?) \| (.*?) \|$", section("deployment.md", "What strangers can do"), re.MULTILINE))
    limits = Limits()
    for what, bounds in {
        "not proved": (limits.strangers, limits.address), "handshake": (limits.handshake,), "head": (limits.head,),
        "body": (limits.body, exchange.SLOWEST / 1024), "between two": (limits.idle,), "of one site": (limits.each,),
    }.items():  # fmt: skip
        [row] = [bound for name, bound in rows.items() if what in name]
        assert {f"{bound:g}" for bound in bounds} <= set(re.findall(r"\d+", row)), what


def anchors(page: Path) -> set[str]:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = [
        re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^#+ (.*)$", text, re.M)
    ]
    return {*titles, *re.findall(r'<a id="([^"]+)">', text)}


@pytest.mark.parametrize("page", sorted(ROOT.glob("*.md")), ids=lambda page: page.stem)
def test_links_from_the_top_lead_to_titles(page: Path) -> None:
    """MkDocs looks at those inside of docs."""
    links = re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text())
    assert links or page.stem in ("CONTRIBUTING", "CHANGELOG")
    assert [link for link in links if link[1] not in anchors(page.parent / link[0] if link[0] else page)] == []


def test_the_citation_is_of_this_version() -> None:
    lines = (ROOT / "CITATION.cff").read_text().splitlines()
    assert f"version: {__version__}" in lines


def test_the_readme_names_the_extras_that_users_install() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    readme = (ROOT / "README.md").read_text()
    [sentence] = re.findall(r"`pip install \"idiolect\[\w+\]\"`: (.*?)\.\n", readme, re.DOTALL)
    assert sorted(re.findall(r"`(\w+)`", sentence)) == sorted(set(extras) - {"dev", "docs"})


def test_pages_speak_of_no_version_of_before() -> None:
    """Nothing was released before 0.1.0."""
    words = re.compile(
        r"(earlier|previous|older|former|last) versions? of idiolect|in (earlier|previous|older) versions?"
    )
    texts = {p: " ".join(p.read_text().lower().split()) for p in PAGES}
    assert [p.name for p, text in texts.items() if words.search(text)] == []
