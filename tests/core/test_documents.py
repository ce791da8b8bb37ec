"""YAML and JSON that are hostile: a sentence each, at once."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from idiolect.core import documents
from idiolect.core.documents import parse_yaml, read_json, read_yaml
from idiolect.core.errors import InputError
from idiolect.core.option_spec import scalar
from idiolect.studies import Study

BOMB = "\n".join(["a0: &a0 [lol]", *(f"a{k}: &a{k} [{','.join([f'*a{k - 1}'] * 9)}]" for k in range(1, 12))])
MERGED = "\n".join(["a0: &a0 {k: v}", *(f"a{k}: &a{k} {{<<: [*a{k - 1}, *a{k - 1}], b{k}: 1}}" for k in range(1, 40))])

HOSTILE = [
    ("name: 2024-02-30", "line 1: '2024-02-30' is not a valid date: put it in quotes if it is text"),
    ("lr: 0.1\nrounds: !!int abc", "line 2: 'abc' is not a valid whole number"),
    ("lr: !!float ''", "line 1: '' is not a valid number"),
    ("lr: !!bool abc", "line 1: 'abc' is not a valid bool"),
    ("name: !!timestamp abc", "line 1: 'abc' is not a valid date"),
    (f"rounds: {'9' * 5000}", "9... is not a valid whole number"),
    (f"rounds: 1{':01' * 5000}", "is not a valid whole number"),
    (f"rounds: {'[' * 2000}", "line 1: more than 100 levels are nested"),
    ("a:\n" + "".join(f"{' ' * k}-\n" for k in range(300)), "more than 100 levels are nested"),
    (BOMB, "it is larger than any study, or repeats itself without end"),
    (MERGED, "it is larger than any study, or repeats itself without end"),
    ("a: &a [*a]", "line 1: it is larger than any study, or repeats itself without end"),
    (f"a: &a {'x' * 100_000}\nb: [{', '.join(['*a'] * 1000)}]", "it is larger than any study"),
    (f"[{'a,' * 9000}'{'x' * 200_000}', {'b,' * 9000}]", "it is larger than any study"),
    ("a: !!python/object/apply:os.system [ls]", "could not determine a constructor for the tag"),
    ("a: b: c", "line 1: mapping values are not allowed here"),
    ("a: \x00", "special characters are not allowed"),
    ("? [1]\n: 2", "line 1: found unhashable key"),
    ("rounds: 1\nlr: 0.1\nrounds: 3", "line 3: 'rounds' is given twice: leave one of them out"),
]


@pytest.mark.parametrize(("text", "said"), HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_yaml(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(InputError) as caught:  # without the bounds, some of these never end
        Study.read(tmp_path / "s.yaml")
    assert said in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path / 's.yaml'} is not YAML (")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_yaml_that_is_too_large_is_not_parsed(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("# " + "x" * 2**19)
    with pytest.raises(InputError, match="bytes, and at most 524,288 are read"):
        Study.read(tmp_path / "s.yaml")


def test_a_repeated_part_is_no_bomb() -> None:
    text = "base: &base {alpha: 0.3}\none: *base\ntwo: {<<: *base, beta: 1, alpha: 0.5}"
    assert parse_yaml(text) == yaml.safe_load(text)


@pytest.mark.skipif(not yaml.__with_libyaml__, reason="there is one way only")
def test_both_ways_to_take_a_text_apart_agree() -> None:
    texts = [p.read_text(encoding="utf-8") for p in (Path(__file__).parents[2] / "examples").glob("*.yaml")]
    assert texts
    texts += ["", "a: |\n  x\n   y\n", "é: '☃ \\n'", "- ~\n- 0x1F\n- 2024-02-29\n- .inf", "a: &b [1]\nc: *b"]
    for text in texts:
        assert yaml.load(text, documents._Quick) == yaml.load(text, documents._Bounded) == yaml.safe_load(text)


@pytest.mark.parametrize("text", ["2024-02-30", "!!int abc", "[" * 2000, "*a", "{", "!!float ''"])
def test_an_option_that_is_no_yaml_is_a_text(text: str) -> None:
    assert scalar(text) == text


def test_a_long_value_is_not_repeated_in_the_sentence() -> None:
    with pytest.raises(InputError) as caught:
        Study(rounds="x" * 10_000)
    assert len(str(caught.value)) < 300


def test_nested_json(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[" * 50_000)
    with pytest.raises(ValueError, match="it is nested too deeply"):
        read_json(tmp_path / "a.json")
    (tmp_path / "a.json").write_text(f'{{"a": {"9" * 5000}}}')
    with pytest.raises(ValueError, match="limit"):
        read_json(tmp_path / "a.json")


def test_a_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="a device"):
        read_yaml(Path("/dev/zero"))
    with pytest.raises(InputError, match=r"cannot read study /dev/zero: it is not a file but a device"):
        Study.read("/dev/zero")
