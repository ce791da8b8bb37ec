"""How the suite is spread over processes (``pytest -n 3``): a file's tests stay together, the longest files begin."""

from __future__ import annotations

import gc
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # several processes run tests; before NumPy and PyTorch are imported

from collections.abc import Generator
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


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Nothing that is imported or collected is garbage: to look for it takes a fifth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, so that none of them is all that is left at the end."""

    def place(item: pytest.Item) -> int:
        return next((k for k, name in enumerate(LONGEST) if item.path.as_posix().endswith(name)), len(LONGEST))

    items.sort(key=place)


@cache
def _speaks_of_pages(path: Path) -> bool:
    text = path.read_text(encoding="utf-8")
    return any(word in text for word in ("html", "page", "report"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """A run's page takes a third of the time of a small run: it is drawn where a file of tests speaks of pages."""
    from idiolect.report import page

    drawn = page._page
    if not _speaks_of_pages(item.path):
        page._page = lambda runs, head=None: "a page that no test looks at"
    try:
        return (yield)
    finally:
        page._page = drawn


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Two Ray clusters side by side would starve each other, and modules' fixtures would be made several times."""
    from xdist.scheduler import LoadScopeScheduling

    class Files(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return nodeid.partition("::")[0]

    config.option.loadscopereorder = False
    return Files(config, log)


@pytest.fixture
def visits() -> tuple[NDArray[Any], ...]:
    """Samples, labels, site and patient of copies of each patient's sample: folds that tear them know them by heart."""
    rng = np.random.default_rng(0)
    patient = np.repeat(np.arange(60), 4)
    y = rng.integers(0, 2, 60)[patient]
    x = rng.normal(0, 1, (60, 6))[patient] + 0.3 * y[:, None]
    return x.astype(np.float32), y, patient % 3, patient
