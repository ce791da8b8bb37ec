"""Each setting of a study stands in one table."""

from __future__ import annotations

from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from idiolect import data
from idiolect.core.defaults import USUAL_CLIENTS, USUAL_DATASET, USUAL_PARTITION
from idiolect.core.option_spec import Spec
from idiolect.data import describe
from idiolect.report.formatting import divided
from idiolect.studies import Study
from idiolect.studies.settings import SETTINGS


def test_every_field_has_a_description_and_a_default_from_the_table() -> None:
    assert set(Study.model_fields) == set(SETTINGS)
    for name, field in Study.model_fields.items():
        assert (field.description, field.default) == (SETTINGS[name].about, SETTINGS[name].default)


def kinds(annotation: Any) -> set[Any]:
    """The plain types of an annotation, without None and ranges."""
    if get_origin(annotation) is Annotated:
        return kinds(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return {kind for one in get_args(annotation) for kind in kinds(one)} - {NoneType}
    return {annotation}


def test_options_read_numbers_as_such_and_all_else_as_text() -> None:
    """Text is then taken apart by the field."""
    for name, field in Study.model_fields.items():
        [kind, *others] = kinds(field.annotation)
        assert (SETTINGS[name].type in (str, Path)) == bool(others or kind not in (bool, int, float)), name
        assert others or kind not in (bool, int, float) or SETTINGS[name].type is kind, name


def test_what_is_taken_where_nothing_decides() -> None:
    study = Study()
    assert (study.dataset, study.clients) == (USUAL_DATASET, USUAL_CLIENTS)
    assert study == Study(dataset=USUAL_DATASET, clients=USUAL_CLIENTS, partition=USUAL_PARTITION)
    assert describe(USUAL_DATASET)["client_column"] is None


def test_the_data_take_the_same_where_nothing_decides() -> None:
    source = data.load("digits", None)
    for partition in (USUAL_PARTITION, "iid", "classes:per_client=3"):
        spec = Spec.parse(partition)
        assert not data.follows_a_column(spec)
        assert data.build(source, spec).clients == USUAL_CLIENTS == Study(partition=partition).clients
    kind, alpha = USUAL_PARTITION.split(":alpha=")
    assert divided(None, by_user=False) == f"{kind} (alpha {alpha}), because the data have no clients"
    assert Study().partition.name == kind
    assert str(Study().partition.options["alpha"]) == alpha
