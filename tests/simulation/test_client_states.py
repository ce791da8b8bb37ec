"""What a client's state may be: of one form in all rounds, and finite; a message says which part is not."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1] / "contract"))  # toy

import toy

from idiolect import methods
from idiolect.core import tree
from idiolect.core.errors import CodeError, Diverged
from idiolect.core.method import Data, Down, Method, Task, Up, reduce
from idiolect.engines import Processes, Sequential
from idiolect.engines.vectorised import Vectorised
from idiolect.simulation import Job, Record, adding, fit
from idiolect.simulation.privacy import GaussianMechanism
from idiolect.simulation.robust import NormBound

ENGINES = [Sequential, partial(Processes, 2), partial(Vectorised, device="cpu")]
FORMS: dict[str, tuple[Tensor, Callable[[Tensor], Any], str]] = {
    "longer": (torch.zeros(2), lambda a: torch.cat([a, a]), "the whole: (4,) float32 in place of (2,) float32"),
    "float64": (torch.zeros(2), lambda a: a.double(), "the whole: (2,) float64 in place of (2,) float32"),
    "a pair": (torch.zeros(()), lambda a: (a, a + 1), "the whole: nothing in place of () float32"),
    "a dictionary": (torch.zeros(1), lambda a: {"n": a}, "the whole: nothing in place of (1,) float32"),
}


def changing(task: Task, *, how: str, waits: bool, personal: bool = True) -> Method:
    """A client's state changes its form in a round, or while it waits."""
    start, change, _ = FORMS[how]

    def local(down: Down, client: Tensor, data: Data, key: Tensor) -> Any:
        return client + 1 if waits else change(client), Up(torch.ones(1)), {}

    return Method(
        lambda key: torch.zeros(1), lambda key, id: start, lambda server, ids: Down(server), local, reduce.sum(),
        lambda server, up, ids: (server + up.value, {}), lambda down, client, data, key: client,
        lambda down, client, x_B: torch.full((len(x_B), toy.CLASSES), 1 / toy.CLASSES).log(),
        (lambda down, client, data, key: change(client)) if waits else None,
    )  # fmt: skip


@pytest.mark.parametrize("waits", [False, True], ids=["local", "stand_by"])
@pytest.mark.parametrize("how", FORMS)
@pytest.mark.parametrize("engine", ENGINES, ids=["sequential", "processes", "vectorised"])
def test_a_state_of_another_form_is_one_sentence(engine: Any, how: str, waits: bool) -> None:
    function = "stand_by" if waits else "local"
    job = Job("changing", partial(changing, toy.task(), how=how, waits=waits), toy.shared(), 3)
    with engine() as runs_on, pytest.raises(CodeError) as caught:
        fit(job, runs_on, rounds=2, participation=0.5)
    said = f"{function}: {function} does not return the client's state in the form that it got ({FORMS[how][2]}): "
    assert said in str(caught.value)
    assert str(caught.value).startswith("changing: client ")


@pytest.mark.kinds
@pytest.mark.parametrize("name", methods.names())
def test_published_methods_keep_the_form_of_their_states(name: str) -> None:
    """With the defaults and as every variant in float32, with the defaults in float64 too, after two rounds."""
    for dtype, options in (*((torch.float32, form) for form in methods.get(name).forms.values()), (torch.float64, {})):
        torch.set_default_dtype(dtype)
        try:
            method = partial(methods.build, name, methods.settle(name, options), toy.task())
            with Sequential() as loop:
                end = fit(Job(name, method, toy.shared(), 3), loop, rounds=2)
            first = method().init_client(torch.tensor(0), torch.tensor(0))
        finally:
            torch.set_default_dtype(torch.float32)
        assert all(tree.same_form(state, first) for state in end.clients)


def breaking(task: Task, *, where: str, personal: bool = True) -> Method:
    """A bare tensor, a client's or the server's, that is no longer a number after a round."""

    def state(at: str) -> Tensor:
        return torch.full((), torch.nan if at == where else 1.0)

    def local(down: Down, client: Tensor, data: Data, key: Tensor) -> Any:
        return state("client"), Up(state("up")), {"loss": state("info")}

    return Method(
        lambda key: torch.ones(()), lambda key, id: torch.ones(()), lambda server, ids: Down(server), local,
        reduce.sum(), lambda server, up, ids: (state("server"), {}), lambda down, client, data, key: client,
        lambda down, client, x_B: torch.full((len(x_B), toy.CLASSES), 1 / toy.CLASSES).log(),
        lambda down, client, data, key: state("waiting"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("client", "round 1, local: training diverged (client is not a finite number)"),
        ("up", "round 1, local: training diverged (up/value is not a finite number)"),
        ("info", "round 1, local: training diverged (info/loss is not a finite number)"),
        ("server", "server, round 1, aggregate: training diverged (server is not a finite number)"),
        ("waiting", "round 1, stand_by: training diverged (client is not a finite number)"),
    ],
)
@pytest.mark.parametrize("engine", ENGINES, ids=["sequential", "processes", "vectorised"])
def test_what_diverged_has_a_name(engine: Any, where: str, said: str) -> None:
    job = Job("breaking", partial(breaking, toy.task(), where=where), toy.shared(), 3)
    with engine() as runs_on, pytest.raises(Diverged) as caught:
        fit(job, runs_on, rounds=2, participation=0.5)
    assert said in str(caught.value)


def failing(task: Task, *, where: str, who: Sequence[int] = (1,), sends: bool = True, personal: bool = True) -> Method:
    """Some clients' training is not finite; a state is a client's number and how often it has trained."""

    def local(down: Down, client: Tensor, data: Data, key: Tensor) -> Any:
        def number(at: str, value: float) -> Tensor:
            return torch.where((client[0] == torch.tensor(who)).any() & (at == where), torch.nan, value)

        up = Up(number("up", 1.0) * torch.ones(2)) if sends else Up()
        return client + number("client", 1.0) * torch.tensor([0.0, 1.0]), up, {"loss": number("info", 1.0)}

    return Method(
        lambda key: torch.zeros(2), lambda key, id: torch.stack([id.float(), torch.zeros(())]),
        lambda server, ids: Down(server), local, reduce.sum(),
        lambda server, up, ids: (server + up.value if sends else server, {}), lambda down, client, data, key: client,
        lambda down, client, x_B: torch.full((len(x_B), toy.CLASSES), 1 / toy.CLASSES).log(), own_start=True,
    )  # fmt: skip


DEFENCES = {
    "robust": NormBound(multiple=9), "privacy": GaussianMechanism(norm=9, noise_multiplier=1e-9, delta=0.1)
}  # fmt: skip


@pytest.mark.parametrize("defence", DEFENCES)
@pytest.mark.parametrize("where", ["client", "up", "info"])
@pytest.mark.parametrize("engine", ENGINES, ids=["sequential", "processes", "vectorised"])
def test_one_training_that_is_not_finite_is_refused_where_uploads_can_be(engine: Any, where: str, defence: str) -> None:
    """It counts for nothing, and the client goes on from the state that it had; without a defence the run ends."""
    job = Job("failing", partial(failing, toy.task(), where=where), toy.shared(), 3)
    with_defence, records = job._replace(**{defence: DEFENCES[defence]}), list[Record]()
    with engine() as runs_on:
        end = fit(with_defence, runs_on, rounds=2, on_round=lambda s, new, t: records.extend(new))
        with pytest.raises(Diverged, match=f"client 1, round 1, local: training diverged \\({where}"):
            fit(job, runs_on, rounds=2)
    clients = range(toy.shared().trained)
    refused = [(r.round, r.client) for r in records if r.metric == "refused"]
    assert refused == [(1, 1), (2, 1)]
    assert {r.client for r in records if r.metric == "loss" and r.stage == "local"} == {*clients} - {1}
    torch.testing.assert_close(end.server, torch.full((2,), 2.0 * (len(clients) - 1)), atol=1e-6, rtol=0)
    assert [client.tolist() for client in end.clients] == [[i, 0 if i == 1 else 2] for i in clients]


@pytest.mark.parametrize("defence", DEFENCES)
def test_a_round_in_which_everybody_is_refused_ends_the_run(defence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else noise alone would move the server, and nobody would know that training diverges."""
    build = partial(failing, toy.task(), where="up", who=range(toy.shared().trained))
    job = Job("failing", build, toy.shared(), 3)._replace(**{defence: DEFENCES[defence]})
    for few in (128, 1):  # one by one, and added up on the way
        monkeypatch.setattr(adding, "_FEW", few)
        with Sequential() as loop, pytest.raises(Diverged, match="failing: round 1, uploads: none is finite"):
            fit(job, loop, rounds=2)


def test_a_training_that_sends_nothing_and_is_not_finite_ends_the_run() -> None:
    """There is no upload that could be refused, so nobody would hear of it."""
    job = Job("failing", partial(failing, toy.task(), where="client", sends=False), toy.shared(), 3, robust=NormBound())
    with Sequential() as loop, pytest.raises(Diverged, match="client 1, round 1, local: training diverged"):
        fit(job, loop, rounds=1)
