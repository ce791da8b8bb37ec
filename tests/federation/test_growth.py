"""A site that is added to the roster while a run goes on takes part in it, and nothing that was computed is lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sites import NAMES, Away, study, workers

from idiolect import methods, models
from idiolect.core import keys, tree
from idiolect.core.errors import Interrupted
from idiolect.core.method import Task
from idiolect.federation.events import FILE, Events, read
from idiolect.federation.rounds.conversation import Patience
from idiolect.federation.server.conduct import Terms, conduct
from idiolect.federation.server.study import study_for
from idiolect.studies import Result

Files = dict[str, Path]
FIRST = NAMES[:4]
_TERMS = Terms(Patience(least=3), start=4)


class Growing(Away):
    """Coast is in the roster, and there, from a round on that another site is asked for."""

    def roster(self) -> Sequence[str]:
        asked = [message.about["round"] for _, message in self.sent if "round" in message.about]
        return NAMES if max(asked, default=0) >= self.back - 1 else FIRST


def _run(
    tmp_path: Path, link: Away, out: str, sites: Sequence[str], roster: Callable[[], Sequence[str]] | None = None
) -> Result:
    whole = study_for(tmp_path / "study.yaml", "trial")
    return conduct(whole, link, sites, tmp_path / out, Events(quiet=True), terms=_TERMS, roster=roster)


def _grown(tmp_path: Path, files: Files, back: int, name: str = "grown") -> tuple[Result, Growing]:
    link = Growing(workers(tmp_path / f"states-{name}", files), back=back)
    return _run(tmp_path, link, name, FIRST, link.roster), link


def _numbers(records: pd.DataFrame) -> pd.DataFrame:
    kept = records[~records["metric"].isin(["answered", "seconds"])]
    return kept.sort_values(["method", "round", "client", "stage", "metric"]).reset_index(drop=True)


@pytest.mark.thorough(but=["*-3"])
# these keep nothing for each client at the server, so that a site which was expected from the start gives the numbers
@pytest.mark.parametrize("back", [2, 3, 4])
@pytest.mark.parametrize("names", ["fedavg, fedper", "fedlda, pfedfda"])
def test_an_added_site_counts_as_one_that_comes_late(names: str, back: int, files: Files, tmp_path: Path) -> None:
    study(tmp_path, names, rounds=4)
    late = _run(tmp_path, Away(workers(tmp_path / "late", files), back=back), "a", NAMES)
    found, _ = _grown(tmp_path, files, back)
    first = names.partition(",")[0]
    one, other = (_numbers(run.records[run.records["method"] == first]) for run in (late, found))
    columns = ["method", "round", "client", "stage", "metric"]
    pd.testing.assert_frame_equal(one[columns], other[columns])
    np.testing.assert_allclose(other["value"], one["value"], rtol=1e-6)
    second = found.records[(found.records["method"] != first) & (found.records["metric"] == "accuracy")]
    assert set(second["client"]) == set(range(5))  # it began after coast was added
    said = [event["event"] for event in read(tmp_path / "grown" / FILE, 1000)]
    assert said.count("coast was added, and takes part as soon as it is there") == 1


def test_what_was_computed_stays(files: Files, tmp_path: Path) -> None:
    study(tmp_path, "fedavg", rounds=4)
    alone = _run(tmp_path, Away(workers(tmp_path / "states", files), back=99), "four", FIRST)
    found, _ = _grown(tmp_path, files, 3)
    for round in (1, 2):
        one, other = (_numbers(run.records[run.records["round"] == round]) for run in (alone, found))
        np.testing.assert_array_equal(one["value"], other["value"])


def _keeps_each_client(name: str) -> bool:
    """Whether the server's state has a row for each client, so that it grows."""
    tasks = (Task(models.build("mlp", (5,), 3), 3, clients) for clients in (4, 5))
    shapes = ([a.shape for a in tree.leaves(methods.build(name, {}, task).init_server(keys.key(0)))] for task in tasks)
    return next(shapes) != next(shapes)


OTHERS = [n for n in methods.names() if n != "local" and not _keeps_each_client(n)]


@pytest.mark.parametrize(
    "name",
    [n for n in methods.names() if n not in ("local", *OTHERS)]
    + [pytest.param(n, marks=pytest.mark.thorough(but=["fedavg", "scaffold", "pfedfda"])) for n in OTHERS],
)
def test_every_method_takes_on_a_site(name: str, files: Files, tmp_path: Path) -> None:
    study(tmp_path, name, rounds=2)
    found, _ = _grown(tmp_path, files, 2)
    last = found.records.query("round == 2 and metric == 'accuracy'")
    assert set(last["client"]) == set(range(5))


def test_the_shares_of_a_mixture_sum_to_1_with_an_added_site(files: Files, tmp_path: Path) -> None:
    study(tmp_path, "fedap", rounds=4)
    found, _ = _grown(tmp_path, files, 2)
    shares = found.records.query("metric == 'mixture'").groupby(["round", "client"])["value"].sum()
    assert len(shares.loc[4]) == 5
    np.testing.assert_allclose(shares, 1, rtol=1e-6)


def test_a_server_that_stops_while_it_grows_goes_on(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from idiolect.federation.server import run

    study(tmp_path, "pfedhn, fedavg", rounds=3)
    whole, _ = _grown(tmp_path, files, 2, "whole")
    honest, calls = run.SiteRun.write, []

    def dies(self: run.SiteRun, folder: Path) -> None:
        calls.append(folder)
        if len(calls) == 2:  # the first is the agreement, the second what has grown
            raise Interrupted("stopped")
        honest(self, folder)

    monkeypatch.setattr(run.SiteRun, "write", dies)
    link = Growing(workers(tmp_path / "states", files), back=2)
    with pytest.raises(Interrupted):
        _run(tmp_path, link, "twice", FIRST, link.roster)
    found = _run(tmp_path, link, "twice", NAMES, link.roster)
    np.testing.assert_allclose(
        _numbers(found.records)["value"], _numbers(whole.records)["value"], rtol=1e-6, equal_nan=True
    )
