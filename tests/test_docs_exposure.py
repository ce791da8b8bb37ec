"""Who sees what, against what is known of some methods, and of one that passes a site's upload on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from idiolect import methods, models
from idiolect.core import reduce, tree
from idiolect.core.method import Down, Method, Reduced, Task
from idiolect.methods import profile

sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))

import exposure

NETWORK = models.build("mlp", (1, 8, 8), 10)


def _of(name: str, **options: Any) -> exposure.Exposure:
    return exposure.of(name, options, profile.of(name, options, NETWORK, 10, 20))


def test_a_mean_is_mixed_and_only_the_head_stays() -> None:
    found = _of("fedper")
    assert (found.server.parts, found.others.parts) == ({"body": "body"}, {"body": "body"})
    assert found.stays.parts["value"] == "head"
    assert (found.alone, found.sums, found.private, found.robust) == ((), True, True, True)


@pytest.mark.parametrize(("name", "part"), [("fedfomo", "models"), ("hypcluster", "models"), ("fedpac", None)])
def test_where_the_server_needs_each_upload(name: str, part: str | None) -> None:
    found = _of(name)
    assert found.alone == (() if part is None else (part,))
    assert (found.sums, found.private, found.robust) == (False, False, False)


def test_weights_by_class_are_sums_and_have_no_noise() -> None:
    found = _of("fedproto")
    assert found.sums
    assert not found.private
    assert found.counts.parts == {"tensor": "(C)"}


def test_a_method_that_passes_an_upload_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its second site's increment reaches everybody, under the name that the message gives it."""

    def build(task: Task) -> Method:
        good = methods.build("fedavg", {}, task)

        def aggregate(server: Any, up: Reduced, ids: torch.Tensor) -> Any:
            return {"mean": tree.mean(up.value, up.weight_m), "last": tree.map(lambda a: a[1], up.value)}, {}

        def start(key: torch.Tensor) -> Any:
            return {"mean": good.init_server(key), "last": good.init_server(key)}

        def local(down: Down, *rest: Any) -> Any:
            return good.local(Down(down.shared["mean"]), *rest)

        return good._replace(init_server=start, local=local, reduce=reduce.each(), aggregate=aggregate)

    r = profile.small_round("fedavg", {})
    changed = build(Task(NETWORK, 10, 3))
    leaking = r._replace(
        method=changed, trial=r.trial._replace(server={"mean": r.trial.server, "last": r.trial.server})
    )
    assert list(exposure.alone(leaking)) == ["last"]
