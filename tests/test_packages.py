"""What is installed is what the code imports."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

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


def plain(asked: str) -> str:
    """The name alone of a package that is asked for."""
    return re.sub("[-_.]+", "-", re.match(r"[\w.-]+", asked)[0]).lower()


def test_what_is_imported_is_a_dependency_or_an_extra():
    project = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
    always = set(map(plain, project["dependencies"]))
    extras = {plain(one) for name, asked in project["optional-dependencies"].items() if name != "dev" for one in asked}
    assert imported() - extras - {"markupsafe"} == always, "markupsafe comes with jinja2"
    assert not always & extras
