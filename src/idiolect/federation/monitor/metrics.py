"""What a server knows of its federation as metrics of Prometheus.

Names of sites are those of the roster, and names of methods those of the study, so a site can make no new series. A
score is left out where it is a mean over fewer than ``FEW`` test samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from idiolect.core.objectives import SCORES

TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""The type of their content: the form that every version of Prometheus reads."""
FEW = 10
"""Test samples of a site without which its scores are no metrics."""
STATES = ("ready", "working", "silent", "not seen", "revoked")
"""What a site can be, as on the operator's page."""
STUDIES = ("waiting", "running", "done", "failed")
"""What a study of a queue can be."""
_OF_SITES: Mapping[str, tuple[Literal["counter", "gauge"], str, str]] = {
    "site_connections": ("counter", "How often the site has connected.", "connections"),
    "site_silence_seconds": ("gauge", "Seconds since the site was last heard of.", "seen"),
    "site_training_seconds": ("gauge", "Seconds from the last question for a training to its reply.", "seconds"),
    "site_sent_bytes": ("counter", "Bytes of messages to the site.", "down"),
    "site_received_bytes": ("counter", "Bytes of messages from the site.", "up"),
    "site_asked_rounds": ("counter", "Rounds in which the site was asked to train.", "asked"),
    "site_counted_rounds": ("counter", "Rounds in which its upload counted.", "counted"),
    "site_refused_uploads": ("counter", "Its replies to a training that were refused.", "refused"),
}
"""By metric: its type, what it is, and the field of a site's status; None there makes no sample."""


def exposition(status: Mapping[str, Any]) -> bytes:
    """The metrics of a status, as ``Overview.status`` says it, and of this process, in the text form ``TYPE``."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    collector: Any = _Collector(status)
    registry.register(collector)
    text: bytes = generate_latest(registry)
    return text


class _Collector:
    """Gives the metrics of a status to a registry."""

    def __init__(self, status: Mapping[str, Any]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """The metrics."""
        status, sites = self._status, self._status["sites"]
        names = {name: status[name] for name in ("federation", "study", "version")}
        yield _family("gauge", "info", "The federation, its study, and the version of idiolect.", names, [(names, 1)])
        yield _family("gauge", "rounds_done", "Rounds on disk, of all methods and seeds.", (), [({}, status["done"])])
        yield _family(
            "gauge", "rounds_planned", "Rounds of the study, of all methods and seeds.", (), [({}, status["of"])]
        )
        methods = status["totals"]["methods"]
        for name, field, what in (
            ("rounds", "rounds", "Rounds that have ended since the server started."),
            ("round_seconds", "seconds", "Seconds that they took."),
        ):
            samples = [({"method": label}, total[field]) for label, total in methods.items()]
            yield _family("counter", name, what, ("method",), samples)
        if status["last_round"] is not None:
            what = "When the last round ended, in Unix time."
            yield _family("gauge", "last_round_timestamp_seconds", what, (), [({}, status["last_round"])])
        if status["queue"]:
            states = [study["state"] for study in status["queue"]]
            samples = [({"state": state}, states.count(state)) for state in STUDIES]
            yield _family("gauge", "studies", "Studies of the server's queue in a state.", ("state",), samples)
        states = [site["state"] for site in sites]
        samples = [({"state": state}, states.count(state)) for state in STATES]
        yield _family("gauge", "sites", "Sites in a state.", ("state",), samples)
        for name, (kind, what, field) in _OF_SITES.items():
            samples = [({"site": site["site"]}, site[field]) for site in sites if site[field] is not None]
            yield _family(kind, name, what, ("site",), samples)
        refused = [({"by": who}, count) for who, count in status["totals"]["refused"].items()]
        yield _family("counter", "refused_connections", "Connections and requests that were refused.", ("by",), refused)
        alarms = [({"kind": kind}, count) for kind, count in status["totals"]["alarms"].items()]
        yield _family("counter", "alarms", "Alarms, as the operator's page shows them.", ("kind",), alarms)
        yield self._scores()

    def _scores(self) -> Metric:
        by = SCORES[self._status["metric"]]
        samples = [
            ({"site": site["site"], "method": label, "stage": stage}, value)
            for site in self._status["sites"]
            if site["tests"] >= FEW
            for label, stages in site[by.metric].items()
            for stage, value in stages.items()
            if stage not in ("seed", "round")
        ]
        what = f"The {by.name} on the site's test samples in the last evaluation of a method."
        return _family("gauge", f"site_{by.metric}", what, ("site", "method", "stage"), samples)


def _family(
    kind: Literal["counter", "gauge"], name: str, what: str, labels: Sequence[str] | Mapping[str, str],
    samples: Sequence[tuple[Mapping[str, str], float]],
) -> Metric:  # fmt: skip
    make = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
    family = make(f"idiolect_{name}", what, labels=list(labels))
    for values, number in samples:
        family.add_metric([values[label] for label in labels], number)
    return family
