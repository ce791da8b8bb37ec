"""What sites should look at before they train is said at both ends, and who does not fit is told why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest
from sites import Away, Loop, study, tables, workers

from idiolect.core.errors import InputError
from idiolect.data.datasets.dataset import Encoding
from idiolect.deploy.schema import Scale
from idiolect.federation.data.agreement import Offer, common_form
from idiolect.federation.data.remarks import remarks
from idiolect.federation.events import Events
from idiolect.federation.rounds.conversation import Patience
from idiolect.federation.server.conduct import Terms, conduct
from idiolect.federation.server.study import study_for

NAMES = ("north", "south", "east")
Change = Callable[[pd.DataFrame], pd.DataFrame]
REMARKS: dict[str, tuple[Change, str]] = {
    "a column less": (lambda t: t.drop(columns="m1"), "column 'm1' is not used, because east has none of this name"),
    "another name": (lambda t: t.rename(columns={"m1": "M1"}), "column 'm1' is not used, because east has none"),
    "two columns less": (
        lambda t: t.drop(columns=["m1", "m3"]),
        "columns 'm1', 'm3' are not used, because east has none",
    ),
    "a column more": (lambda t: t.assign(more=t["m0"]), "column 'more' is not used, because north, south have none"),
    "other names of classes": (
        lambda t: t.assign(label=t["label"].str.replace("grade", "Grad")),
        "no class of east (Grad 0, Grad 1, Grad 2) is one of another site's (grade 0, grade 1, grade 2)",
    ),
    "numbers for classes": (
        lambda t: t.assign(label=t["label"].str[-1]),
        "is one of another site's (grade 0, grade 1, grade 2)",
    ),
}
MISFITS: dict[str, tuple[Change, str]] = {
    "texts for numbers": (lambda t: t.assign(m0="x" + t["m0"].round().astype(str)), "column 'm0' has texts at east"),
    "no common column": (lambda t: t.rename(columns=lambda c: c if c == "label" else f"my {c}"), "no column in common"),
    "another unit": (lambda t: t.assign(m0=1e4 * (5 + t["m0"].abs())), "looks like another unit"),
}


def _link(folder: Path, change: Change, kind: type[Loop] = Loop, **more: int) -> Loop:
    files = tables(folder, NAMES, rows=60)
    change(pd.read_csv(files["east"])).to_csv(files["east"], index=False)
    link = kind(workers(folder / "states", files), **more)
    for name, worker in link.workers.items():
        worker._say = Events(folder / f"{name}.jsonl", quiet=True)
    study(folder, rounds=2)
    return link


@pytest.mark.parametrize("name", REMARKS)
def test_both_ends_say_what_to_look_at(name: str, tmp_path: Path) -> None:
    change, sentence = REMARKS[name]
    link = _link(tmp_path, change)
    say = Events(quiet=True)
    conduct(study_for(tmp_path / "study.yaml", "trial"), link, list(NAMES), tmp_path / "run", say)
    for file in ("run/events.jsonl", *(f"{site}.jsonl" for site in NAMES)):
        assert (tmp_path / file).read_text().count(sentence.replace('"', '\\"')) == 1, file


def test_sites_that_fit_say_nothing(tmp_path: Path) -> None:
    link = _link(tmp_path, lambda t: t)
    conduct(study_for(tmp_path / "study.yaml", "trial"), link, list(NAMES), tmp_path / "run", Events(quiet=True))
    assert "not used" not in (tmp_path / "run" / "events.jsonl").read_text()
    assert "no class of" not in (tmp_path / "run" / "events.jsonl").read_text()


@pytest.mark.parametrize("name", MISFITS)
def test_all_sites_are_told_why_a_study_cannot_begin(name: str, tmp_path: Path) -> None:
    change, sentence = MISFITS[name]
    link = _link(tmp_path, change)
    with pytest.raises(InputError, match=sentence):
        conduct(study_for(tmp_path / "study.yaml", "trial"), link, list(NAMES), tmp_path / "run", Events(quiet=True))
    for site in NAMES:
        said = (tmp_path / f"{site}.jsonl").read_text()
        assert said.count("this site takes no part: ") == 1
        assert sentence in said


class Late(Away):
    """East comes after the agreement."""

    def send(self, site: str, content: bytes) -> str:
        return super().send("coast" if site == "east" else site, content)

    def quiet_for(self, site: str) -> float:
        return super().quiet_for("coast" if site == "east" else site)


@pytest.mark.parametrize("name", ["texts for numbers", "another unit"])
def test_a_late_site_that_does_not_fit_is_told_once(name: str, tmp_path: Path) -> None:
    change, sentence = MISFITS[name]
    link = _link(tmp_path, change, Late, back=1)
    link.workers["coast"] = link.workers["east"]
    study(tmp_path, rounds=5)
    terms = Terms(Patience(least=2), start=2)
    conduct(
        study_for(tmp_path / "study.yaml", "trial"),
        link,
        list(NAMES),
        tmp_path / "run",
        Events(quiet=True),
        terms=terms,
    )
    said = (tmp_path / "east.jsonl").read_text()
    assert said.count("this site takes no part: ") == 1
    assert sentence.replace(" at east", "") in said
    assert said.count("study trial of 5 rounds") == 1


def test_many_columns_are_compared_in_a_moment() -> None:
    """Each offer is read once, and not once for each column."""
    count, readings = 300, 0

    class Columns(tuple[Encoding, ...]):
        def __iter__(self) -> Iterator[Encoding]:
            nonlocal readings
            readings += 1
            return super().__iter__()

    columns = Columns(Encoding(f"m{k}") for k in range(count))
    one = Offer(kind="table", classes=("a", "b"), scales=(Scale(),) * count)
    offers = {name: one.model_copy(update={"columns": columns}) for name in NAMES}
    inputs, _ = common_form(offers, "classification")
    assert remarks(inputs, offers) == []
    assert len(inputs.columns) == count
    assert readings < 10 * len(NAMES)
