"""A site's numbers have the names that the study gives them, and values that they can have."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from sites import NAMES, Loop, measuring, study, workers

from idiolect.federation.events import Events
from idiolect.federation.messages import Message, Refusal
from idiolect.federation.rounds import checks
from idiolect.federation.rounds.conversation import Patience
from idiolect.federation.rounds.measurements import Metrics, evaluation_result
from idiolect.federation.server.conduct import Terms, conduct
from idiolect.federation.server.study import study_for
from idiolect.runs.folder import RECORDS_FILE
from idiolect.runs.loading import table
from idiolect.simulation.metric_ranges import of_measures

Files = dict[str, Path]
HONEST = {"accuracy": 0.5, "loss": 1.0, "calibration_error": 0.1, "brier": 0.5}
CLASSES = Metrics("classification", of_measures("classification", 3, (), ("recall", "auroc"), "half"))


@pytest.mark.parametrize(
    "more",
    [
        {"observations": 1.0},
        {"p_NC": 1.0},
        {"measures": {"accuracy": 7.3}},
        {"measures": {"validation_accuracy": 0.9}},
        {"measures": {"recall[3]": 0.5}},
        {"measures": {"mse": 0.5}},
        {"measures": {"auroc": 1.5}},
        {"measures": {"macro_f1": -0.5}},
        {"accuracy": None},
        {"loss": -1.0},
        {"brier": 2.5},
        {"calibration_error": -0.1},
    ],
)
def test_only_the_metrics_of_the_study_count(more: dict[str, Any]) -> None:
    with pytest.raises(Refusal, match=r"other measurements|is not possible"):
        evaluation_result(Message({"measured": HONEST | more}, {}), CLASSES)


def test_an_honest_site_counts_and_a_number_may_be_missing() -> None:
    more = {"loss": None, "measures": {"recall[2]": 1.0, "auroc": None, "auroc_low": 0.2, "balanced_accuracy": 0.5}}
    found = evaluation_result(Message({"measured": HONEST | more}, {}), CLASSES)
    assert found is not None
    assert found.loss is not None
    assert found.measures is not None
    assert math.isnan(found.loss)
    assert math.isnan(found.measures["auroc"])
    assert (found.accuracy, found.measures["recall[2]"]) == (0.5, 1.0)


@pytest.mark.parametrize("values", [{"observations": 1.0}, {"measures": {"accuracy": 7.3}}])
def test_a_run_goes_on_without_what_a_site_makes_up(values: dict[str, object], files: Files, tmp_path: Path) -> None:
    study(tmp_path, rounds=2)
    link = Loop(workers(tmp_path / "states", files), {"east": measuring(values)})
    whole = study_for(tmp_path / "study.yaml", "trial")
    records = conduct(
        whole, link, list(NAMES), tmp_path / "run", Events(quiet=True), terms=Terms(Patience(least=3))
    ).records
    assert set(records.query("metric == 'accuracy'")["client"]) == {0, 1, 3, 4}


@pytest.mark.parametrize("name", ["accuracy", "bytes_up", "answered", "x" * 200])
def test_a_site_reports_of_its_training_what_its_method_does(name: str, files: Files, tmp_path: Path) -> None:
    study(tmp_path, "fedrep", rounds=2)

    def tamper(asked: Message, honest: Message) -> Message:
        more = {"info": honest.about["info"] | {name: 2.0}} if asked.about["kind"] == "local" else {}
        return Message(honest.about | more, honest.arrays)

    link = Loop(workers(tmp_path / "states", files), {"east": tamper})
    whole = study_for(tmp_path / "study.yaml", "trial")
    records = conduct(
        whole, link, list(NAMES), tmp_path / "run", Events(quiet=True), terms=Terms(Patience(least=3))
    ).records
    assert set(records.query("stage == 'local'")["metric"]) == {"train_loss", "head_loss"}
    assert set(records.query("metric == 'answered'")["client"]) == {NAMES.index("east")}
    table(tmp_path / "run" / RECORDS_FILE)


def test_a_report_is_of_names_that_are_known() -> None:
    assert checks.report_of(Message({"info": {"train_loss": 2}}, {}), {"train_loss", "step"}) == {"train_loss": 2.0}
    with pytest.raises(Refusal, match="info 'acc' is no number that its method reports"):
        checks.report_of(Message({"info": {"train_loss": 2, "acc": 1}}, {}), {"train_loss", "step"})
