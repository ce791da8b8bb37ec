"""What a method reveals, against counts by hand and against methods made for it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from idiolect import cli, methods, models
from idiolect.core import reduce, tree
from idiolect.core.errors import InputError, RunError
from idiolect.core.method import Data, Down, Method, Reduced, Task
from idiolect.methods import profile

C, d, K, FLOAT = 10, 64, 20, 4
NETWORK = models.build("mlp", (1, 8, 8), C)
BODY, HEAD = 64 * d + d, d * C + C
MODEL = BODY + HEAD


def of(name: str, **options: Any) -> profile.Anatomy:
    return profile.of(name, options, NETWORK, C, K)


def test_fedavg() -> None:
    a = of("fedavg")
    assert a.down_shared == ({"model": "model"}, MODEL * FLOAT)
    assert a.up_value == ({"model": "model"}, MODEL * FLOAT)
    assert a.up_weight.bytes == FLOAT
    assert a.down_own == a.client == ({}, 0)
    assert a.uploads_are_sums
    assert a.joins_by == "what it receives"


@pytest.mark.parametrize(
    ("name", "pattern", "sent", "bytes", "kept"),
    [
        ("fedavg", "head", {"body": "body"}, BODY, {"weights/head": "head", "trained": "()"}),
        ("fedavg", "*weight", {"model without the weights that stay": "model without the weights that stay"}, d + C,
         {"weights/body": "some of body", "weights/head": "some of head"}),
        ("fedper", "*weight", {"body without the weights that stay": "body without the weights that stay"}, d,
         {"value": "head", "trained": "()", "weights/body": "some of body"}),
        ("pfedfda", "body.1.bias",
         {"body without the weights that stay": "body without the weights that stay", "mean_Cd": "(C, d)",
          "cov": "(d(d+1)/2)"}, BODY - d + C * d + d * (d + 1) // 2, {"weights/body": "some of body"}),
        ("local", "head", {}, 0, {"value": "model", "trained": "()"}),
    ],
)  # fmt: skip
def test_what_stays_by_a_rule_is_not_sent(
    name: str, pattern: str, sent: dict[str, str], bytes: int, kept: dict[str, str]
) -> None:
    a = profile.of(name, {}, NETWORK, C, K, personal_weights=pattern)
    assert a.down_shared == a.up_value == (sent, bytes * FLOAT)
    assert a.client.parts == kept
    assert a.joins_by == "training"


def test_local_sends_nothing_and_trains_to_join() -> None:
    a = of("local")
    assert a.down_shared.bytes == a.down_own.bytes == a.up_value.bytes == a.up_weight.bytes == 0
    assert a.client.parts["value"] == "model"
    assert a.joins_by == "training"


def test_pfedfda_sends_means_and_half_a_covariance_and_joins_by_forward_passes() -> None:
    a = of("pfedfda")
    assert a.up_value.bytes == FLOAT * (BODY + C * d + d * (d + 1) // 2)
    assert a.up_value.parts == {"body": "body", "mean_Cd": "(C, d)", "cov": "(d(d+1)/2)"}
    assert a.uploads_are_sums
    assert a.joins_by == "forward passes"


def test_fedpac_needs_to_see_who_sent_what_and_keeps_a_head_for_each() -> None:
    a = of("fedpac")
    assert a.down_own == ({"head": "head"}, HEAD * FLOAT)
    assert a.up_value.bytes == FLOAT * (MODEL + 2 * C * d + 1)
    assert a.server.parts["heads"] == "K x head"
    assert not a.uploads_are_sums


def probe(change: Callable[[Method], dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> profile.Anatomy:
    """FedAvg with something changed."""
    real = methods.build

    def build(name: str, options: Any, task: Task) -> Method:
        good = real("fedavg", {}, task)
        return good._replace(**change(good))

    monkeypatch.setattr(profile.methods, "build", build)
    return of("fedavg")


def _asks_for_each(good: Method) -> dict[str, Any]:
    def aggregate(server: Any, up: Reduced, ids: Tensor) -> Any:
        return tree.add(server, tree.map(lambda a: a.amax(0), up.value)), {}

    return {"reduce": reduce.each(), "aggregate": aggregate}


def test_what_the_server_needs_is_as_the_method_declares(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not probe(_asks_for_each, monkeypatch).uploads_are_sums
    monkeypatch.undo()
    for name in ("fedproto", "scaffold", "fedem", "local"):  # class counts, two weightings, several models, nothing
        assert of(name).uploads_are_sums
    for name in ("fedfomo", "hypcluster", "pfedhn"):
        assert not of(name).uploads_are_sums


def test_a_gradient_on_the_way_in_is_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def personalise(down: Down, client: Any, data: Data, key: Tensor) -> Any:
        w = torch.ones(3, requires_grad=True)
        return torch.autograd.grad(w.square().sum(), w)

    def functional(down: Down, client: Any, data: Data, key: Tensor) -> Any:
        return torch.func.grad(lambda w: w.square().sum())(torch.ones(3))

    assert probe(lambda good: {"personalise": personalise}, monkeypatch).joins_by == "training"
    assert probe(lambda good: {"personalise": functional}, monkeypatch).joins_by == "training"
    counted = probe(lambda good: {"personalise": lambda down, client, data, key: data.real_N.sum()}, monkeypatch)
    assert counted.joins_by == "forward passes"


def test_a_method_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise IndexError("row 3")

    with pytest.raises(RunError, match=r"method fedavg, on synthetic samples: IndexError: row 3"):
        probe(lambda good: {"personalise": fails}, monkeypatch)
    with pytest.raises(InputError, match="unknown method"):
        of("fedavgg")
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, (False, [], False)),
        ({"stand_by": lambda down, client, data, key: client}, (True, [], False)),
        ({"full_rounds": (1, 5)}, (False, [1, 5], False)),
        ({"own_start": True}, (False, [], True)),
        ({"stand_by": lambda *of: of[1], "full_rounds": (2,), "own_start": True}, (True, [2], True)),
    ],
)
def test_what_a_method_says_besides_is_told(
    change: dict[str, Any], said: tuple[bool, list[int], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    about = probe(lambda good: change, monkeypatch).as_json()
    assert (about["stand_by"], about["full_rounds"], about["own_start"]) == said


@pytest.mark.parametrize("error", [ValueError("no room"), ZeroDivisionError("by zero"), KeyError("head")])
def test_the_trial_runs_what_waiting_clients_do(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise error

    with pytest.raises(RunError, match=f"on synthetic samples: {type(error).__name__}: {error}"):
        probe(lambda good: {"stand_by": fails}, monkeypatch)


def test_several_of_a_part_are_counted() -> None:
    network = models.build("mlp", (1, 8, 8), C)
    model = network.init(torch.tensor(0))
    three = tree.map(lambda w: w.expand(3, *w.shape), model)
    parts = dict(profile._parts({"all": three, "k": torch.ones(19)}, model))
    assert parts == {"all": ("model", (3,)), "k": ("", (19,))}
    assert dict(profile._parts((model.head, model.body), model)) == {"0": ("head", ()), "1": ("body", ())}


def test_a_dimension_goes_by_its_symbol_where_two_sizes_agree() -> None:
    server = of("pfedhn").server.parts
    assert server["hyper/embedding_Ke"] == "(K, ?)"  # int(1 + K / 4)
    assert server["hyper/layers/1/weight"] == "(100, 100)"
    assert server["hyper/heads/weight/head/weight"] == "(?, 100)"  # C d outputs
    assert of("fedem", models=19).down_shared.parts == {"models": "19 x model"}  # 19 classes in one of them
    assert of("hypcluster", clusters=5).down_shared.parts == {"models": "5 x model"}


def test_the_list_says_what_travels(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "names", lambda: ["fedavg", "pfedfda"])
    with pytest.raises(SystemExit) as stop:
        cli.main(["list", "methods", "--json", "--dataset", "cifar10"])
    assert stop.value.code == 0
    listed = json.loads(capsys.readouterr().out)
    mine = listed["fedavg"]["anatomy"]
    assert mine["down"]["shared"] == {"parts": {"model": "model"}, "bytes": 430_760}  # 107,690 weights
    assert listed["fedavg"]["counted_for"] == {
        "dataset": "cifar10",
        "model": "cifar_cnn",
        "weights": 107_690,
        "clients": 20,
    }
    assert mine["uploads_are_sums"] is True
    assert mine["keeps_state_at_the_client"] is False
    assert listed["pfedfda"]["anatomy"]["joins_by_forward_passes_only"] is True


@pytest.mark.parametrize(
    "arguments", [["list", "models", "--json", "--model", "mlp"], ["list", "methods", "--dataset", "digits"]]
)
def test_bytes_are_for_the_json_of_methods(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    assert stop.value.code == 2
    assert "are for idiolect list methods --json" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(("option", "value"), [("--model", "mpl"), ("--dataset", "cifar1")])
def test_unknown_names(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["list", "methods", "--json", option, value])
    assert stop.value.code == 2
    assert "unknown" in capsys.readouterr().err
