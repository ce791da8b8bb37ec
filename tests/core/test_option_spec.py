"""How methods, partitions and shifts are written and checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import PositiveFloat, PositiveInt

from idiolect.core.errors import InputError
from idiolect.core.option_spec import Spec, check, complete, options_of, scalar, split_list

NAME = st.from_regex(r"[a-z][a-z_]{2,8}[a-z]", fullmatch=True).filter(lambda s: isinstance(scalar(s), str))
VALUE = st.one_of(st.integers(-999, 999), st.booleans(), st.none(), NAME, st.floats(-1e9, 1e9))


@settings(deadline=None, max_examples=50)
@given(name=NAME, options=st.dictionaries(NAME, VALUE, max_size=4))
def test_a_spec_reads_back(name: str, options: dict[str, Any]) -> None:
    spec = Spec(name=name, options=options)
    assert Spec.parse(str(spec)) == spec
    assert Spec.model_validate(str(spec)) == spec


@pytest.mark.parametrize(
    ("text", "value"),
    [("3", 3), ("1e-4", 1e-4), ("1E3", 1000.0), ("0.5", 0.5), ("true", True), ("null", None), ("multi", "multi"),
     ("0-4", "0-4"), ("probe", "probe"), ("[1", "[1")],
)  # fmt: skip
def test_scalars(text: str, value: object) -> None:
    assert scalar(text) == value
    assert type(scalar(text)) is type(value)


def test_pieces() -> None:
    spec = Spec.parse(" dirichlet : alpha = 0.3 , min_rows=5,")
    assert (spec.name, spec.options) == ("dirichlet", {"alpha": 0.3, "min_rows": 5})
    with pytest.raises(InputError, match="cannot read 'alpha' in 'dirichlet:alpha'"):
        Spec.parse("dirichlet:alpha")


def test_lists() -> None:
    text = "local, fedpac:alignment=0,threshold=0, fedavg, pfedfda,ridge=0.1"
    assert split_list(text) == ["local", "fedpac:alignment=0,threshold=0", "fedavg", "pfedfda:ridge=0.1"]
    assert split_list("") == []


def function(
    task: object, *, alpha: PositiveFloat = 0.5, rows: PositiveInt = 3, kind: Literal["a", "b"] = "a", on: bool = True
) -> None: ...


def test_options_are_the_keywords() -> None:
    assert list(options_of(function)) == ["alpha", "rows", "kind", "on"]


def test_checked_options_are_converted() -> None:
    got = check(function, {"alpha": 1, "kind": "b"}, "thing")
    assert got == {"alpha": 1.0, "kind": "b"}
    assert type(got["alpha"]) is float


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpa": 1}, "thing has no option 'alpa'; did you mean 'alpha'"),
        ({"task": 1}, "thing has no option 'task'"),
        ({"alpha": 0}, "thing: alpha=0 is not valid: input should be greater than 0"),
        ({"rows": 2.5}, "thing: rows=2.5 is not valid"),
        ({"kind": "c"}, "thing: kind='c' is not valid"),
        ({"alpha": "much"}, "thing: alpha='much' is not valid"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        check(function, options, "thing")


@dataclass(frozen=True)
class Pull:
    rate: float = 0.5
    places: int | None = None


def pull(spec: Spec) -> Pull:
    return Pull(**spec.options)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("pull", {"rate": 0.5, "places": None}),
        ("pull:rate=2", {"rate": 2.0, "places": None}),
        ("pull:places=3", {"rate": 0.5, "places": 3}),
        ("pull:places=3,rate=0.25", {"rate": 0.25, "places": 3}),
    ],
)
def test_a_spec_gets_the_options_that_it_leaves_out(text: str, options: dict[str, Any]) -> None:
    whole = complete(Spec.parse(text), pull)
    assert (whole.name, whole.options) == ("pull", options)
    assert complete(whole, pull) == whole
