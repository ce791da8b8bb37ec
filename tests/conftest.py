"""How the suite is spread over processes, and what is left to ``pytest --slow`` and ``pytest --thorough``.

A file's tests stay together, and the longest files begin. Tests that take long, and whose subject a faster one has too,
are marked ``thorough``, or all their parameters ``but`` some (patterns of their names). What every method goes through
beside the contract is marked ``kinds``: it is usually run with some methods, whose states have every form. Of what is
left, one test in 25 takes more than half of the time: these are listed in slow.txt. ``pytest`` leaves them out, unless
it is given files or ``-k``, and ``pytest --slow`` runs them and no others.
"""

from __future__ import annotations

import gc
import inspect
import os
import re
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")  # several processes run tests; before NumPy and PyTorch are imported

from collections.abc import Callable, Generator
from contextlib import contextmanager
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer.main
from numpy.typing import NDArray

typer.main.get_command = cache(
    typer.main.get_command
)  # it takes a tenth of a second, for each command that a test runs

os.fsync = lambda fd: None  # only a machine that loses its power needs it, and a disk takes milliseconds

LONGEST = ("fuzz/test_fuzz.py", "engines/test_ray.py", "contract/test_contract.py", "engines/test_vectorised.py",
           "federation/test_processes.py", "studies/test_interruptions.py", "deploy/test_every_method.py",
           "reproduction/test_reproduce.py", "report/test_browser.py")  # fmt: skip


KINDS = frozenset({
    "local", "fedavg", "fedper", "scaffold", "ditto", "fedem", "fedfomo", "pfedhn", "fedkd", "fedtgp", "floco",
    "fedpac", "pfedfda", "fedcr", "fedlda", "fedshrink", "knnper",
})  # fmt: skip
"""A method for each form of what server and client keep: nothing, a head, a body, a model, several, of each client, a
generator, prototypes, statistics, a second network, samples."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="the tests that tests/slow.txt lists, and no others")
    parser.addoption("--thorough", action="store_true", help="all tests, with every method in each")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Nothing that is imported or collected is garbage: to look for it takes a fifth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


TESTS = Path(__file__).parent
SLOW = frozenset((TESTS / "slow.txt").read_text(encoding="utf-8").splitlines())


def is_slow(id: str) -> bool:
    """Whether slow.txt lists a test, its function, or its file."""
    return not SLOW.isdisjoint((id, id.partition("[")[0], id.partition("::")[0]))


def _is_of_kinds(method: str) -> bool:
    return method.partition(":")[0] in KINDS


def _is_usual(item: pytest.Item) -> bool:
    if item.get_closest_marker("kinds"):
        params = item.callspec.params  # type: ignore[attr-defined]
        return _is_of_kinds(params.get("name", params.get("method")))
    if thorough := item.get_closest_marker("thorough"):
        id = item.callspec.id if hasattr(item, "callspec") else ""
        return any(fnmatch(id, pattern) for pattern in thorough.kwargs.get("but", ()))
    return True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The longest files first, so that none of them is all that is left at the end."""
    if not config.getoption("thorough"):
        whole = [Path(arg).resolve() for arg in config.args] == [TESTS] and not config.getoption("keyword")
        wanted = {True} if config.getoption("slow") else {False} if whole else {True, False}

        def taken(item: pytest.Item) -> bool:
            return _is_usual(item) and is_slow(item.nodeid) in wanted

        some, rest = [], []
        for item in items:
            (some if taken(item) else rest).append(item)
        config.hook.pytest_deselected(items=rest)
        items[:] = some

    def place(item: pytest.Item) -> int:
        return next((k for k, name in enumerate(LONGEST) if item.path.as_posix().endswith(name)), len(LONGEST))

    items.sort(key=place)


PAGES = ("html", "page", "report")


@cache
def _file_speaks_of_pages(path: Path) -> bool:
    text = path.read_text(encoding="utf-8")
    return any(word in text for word in PAGES)


@cache
def _speaks_of_pages(test: Any, fixtures: frozenset[tuple[str, Any]]) -> bool:
    """Whether a test does, or what it uses: these fixtures, and functions, classes and constants of its file."""
    waiting, seen = [test], set()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        is_code = inspect.isroutine(one) or inspect.isclass(one)
        text = inspect.getsource(one) if is_code else repr(one)
        if any(word in text for word in PAGES):
            return True
        if is_code:
            file = {k: v for k, v in vars(sys.modules[one.__module__]).items() if _is_of(one.__module__, v)}
            file |= dict(fixtures)
            waiting += [file[name] for name in set(re.findall(r"\w+", text)) & file.keys()]
    return False


def _is_of(file: str, thing: Any) -> bool:
    return isinstance(thing, str | tuple | list | dict) or getattr(thing, "__module__", None) == file


@cache
def _usual() -> Callable[..., str]:
    from idiolect.report import page

    return page._page


@contextmanager
def _pages(drawn: bool) -> Generator[None]:
    """A run's page takes a third of the time of a small run: it is drawn for what speaks of pages."""
    from idiolect.report import page

    usual, before = _usual(), page._page
    page._page = usual if drawn else lambda runs, head=None: "a page that no test looks at"
    try:
        yield
    finally:
        page._page = before


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    speaks = False
    if isinstance(item, pytest.Function) and _file_speaks_of_pages(item.path):
        fixtures = ((name, found[-1].func) for name, found in item._fixtureinfo.name2fixturedefs.items())
        speaks = _speaks_of_pages(
            item.function,
            frozenset((k, f) for k, f in fixtures if Path(f.__code__.co_filename).is_relative_to(TESTS)),
        )
    with _pages(speaks):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any, request: pytest.FixtureRequest) -> Generator[None, Any, Any]:
    """What is made once for a file may be looked at by any of its tests."""
    if fixturedef.scope in ("function", "session"):
        return (yield)
    with _pages(_file_speaks_of_pages(request.path)):
        return (yield)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Two Ray clusters side by side would starve each other, and modules' fixtures would be made several times."""
    from xdist.scheduler import LoadScopeScheduling

    class Files(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return nodeid.partition("::")[0]

    config.option.loadscopereorder = False
    return Files(config, log)


@pytest.fixture(scope="session")
def of_kinds(request: pytest.FixtureRequest) -> Callable[[list[str]], list[str]]:
    """Those of these methods that tests marked ``kinds`` are tried with."""
    every = request.config.getoption("thorough")
    return lambda names: [name for name in names if every or _is_of_kinds(name)]


@pytest.fixture
def visits() -> tuple[NDArray[Any], ...]:
    """Samples, labels, site and patient of copies of each patient's sample: folds that tear them know them by heart."""
    rng = np.random.default_rng(0)
    patient = np.repeat(np.arange(60), 4)
    y = rng.integers(0, 2, 60)[patient]
    x = rng.normal(0, 1, (60, 6))[patient] + 0.3 * y[:, None]
    return x.astype(np.float32), y, patient % 3, patient
