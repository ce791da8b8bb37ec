"""What ``import idiolect`` offers."""

from __future__ import annotations

import subprocess
import sys
import types

import pytest

import idiolect as idl


@pytest.mark.parametrize("name", idl.__all__)
def test_every_public_name_is_there_and_documented(name: str) -> None:
    value = getattr(idl, name)
    assert value.__doc__
    assert f"``{name}``" in str(idl.__doc__), "the module says what it is for"
    if not isinstance(value, types.ModuleType):
        assert value.__name__ == name


def test_another_name_is_not_there() -> None:
    with pytest.raises(AttributeError, match="module 'idiolect' has no attribute 'studdy'"):
        idl.studdy  # noqa: B018


def test_completion_finds_every_public_name_before_its_first_use() -> None:
    code = "import sys, idiolect; print(*dir(idiolect)); assert 'torch' not in sys.modules"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {"Study", "run", "data", "Result", "tune", "__version__"} | set(idl.__all__) <= set(found)


def test_the_import_alone_is_light() -> None:
    code = "import sys, idiolect; print(*{m.partition('.')[0] for m in sys.modules})"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "numpy", "pandas", "sklearn"} & set(found)
