"""What is installed is what the code imports."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[1]


def imported() -> set[str]:
    """The packages that an import statement names, as they are called where they are installed from."""
    found = set()
    for path in (TOP / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found.add(str(node.module).partition(".")[0])
    whose = packages_distributions()
    return {plain(whose.get(name, [name])[0]) for name in found - sys.stdlib_module_names - {"idiolect"}}


_POSIX = {"fcntl", "grp", "pty", "pwd", "resource", "termios"}
_PROGRAMS = {"launcher.py", "harness.py"}  # run in processes of their own, by tests that are skipped elsewhere


def on_posix_alone(source: str) -> set[str]:
    """The modules of POSIX that a source imports as soon as it is imported itself."""
    tops = [node for node in ast.parse(source).body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [alias.name for node in tops if isinstance(node, ast.Import) for alias in node.names]
    return {*names, *(str(node.module) for node in tops if isinstance(node, ast.ImportFrom))} & _POSIX


def test_tests_can_be_collected_without_posix() -> None:
    found = {p.name: on_posix_alone(p.read_text()) for p in (TOP / "tests").rglob("*.py") if p.name not in _PROGRAMS}
    assert {name: modules for name, modules in found.items() if modules} == {}


@pytest.mark.parametrize(
    ("source", "modules"),
    [
        ("import os, resource", {"resource"}),
        ("from fcntl import flock", {"fcntl"}),
        ("import pwd as users\nimport grp", {"pwd", "grp"}),
        ("def f():\n    import resource", set()),
        ("import pytest\nresource = pytest.importorskip('resource')", set()),
    ],
)
def test_modules_of_posix_are_recognised(source: str, modules: set[str]) -> None:
    assert on_posix_alone(source) == modules


def plain(asked: str) -> str:
    """The name alone of a package that is asked for."""
    return re.sub("[-_.]+", "-", re.match(r"[\w.-]+", asked)[0]).lower()


def test_what_is_imported_is_a_dependency_or_an_extra():
    project = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
    always = set(map(plain, project["dependencies"]))
    extras = {plain(one) for name, asked in project["optional-dependencies"].items() if name != "dev" for one in asked}
    assert imported() - extras - {"markupsafe"} == always, "markupsafe comes with jinja2"
    assert not always & extras
