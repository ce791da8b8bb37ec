"""Every published method against every check of the contract, and every check against a method that breaks it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # specimens and toy travel to other processes by name

import checks
import toy
from specimens import ON_NORMS, SPECIMENS, own_start

from idiolect import methods
from idiolect.core import keys, tree
from idiolect.core.method import SGD, Down, Training
from idiolect.core.reduction import reduced
from idiolect.engines import Processes, Sequential
from idiolect.simulation import Job, begin, fit
from idiolect.training.server_optimisers import ServerAdam, ServerMomentum, ServerOptimiser

EXACT = {"engines_agree", "resumes_exactly"}  # bits, so in float32 as users run; the rest compares sums, in float64
OPTIONS: dict[str, dict[str, object]] = {  # to take less time; a hundred passes also magnify rounding, on 20 prototypes
    "pfedhn": {"steps": 16}, "fedala": {"most_passes": 12}, "fedtgp": {"server_epochs": 10},
    "floco": {"start_round": 1, "endpoints": 2},  # so that clients have regions after two rounds
}  # fmt: skip


@pytest.fixture(autouse=True)
def _precision(request: pytest.FixtureRequest) -> Iterator[None]:
    exact = getattr(request.node, "callspec", None) and request.node.callspec.params.get("check") in EXACT
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float32 if exact else torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="module")
def shared() -> Iterator[dict[str, Callable[..., None]]]:
    """Checks on processes that all methods take in turn: to start some for each is most of what these would cost."""
    with ExitStack() as stack:
        workers = stack.enter_context(Processes(2))
        command = [sys.executable, checks.__file__]
        server = stack.enter_context(
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent
            )
        )

        def afresh(folder: Path) -> None:
            assert server.stdin is not None
            assert server.stdout is not None
            print(folder, file=server.stdin, flush=True)
            assert server.stdout.readline() == "0\n"

        yield {
            "engines_agree": partial(checks.engines_agree, workers=lambda: nullcontext(workers)),
            "resumes_exactly": partial(checks.resumes_exactly, afresh=afresh),
        }


def _apply(check: str, build: toy.Build, folder: Path, shared: dict[str, Callable[..., None]]) -> None:
    function = shared.get(check) or getattr(checks, check)
    function(build, folder) if check == "resumes_exactly" else function(build)


@pytest.mark.parametrize("check", SPECIMENS)
@pytest.mark.parametrize("name", methods.names())
def test_method_satisfies(name: str, check: str, tmp_path: Path, shared: dict[str, Callable[..., None]]) -> None:
    _apply(check, toy.builder(name, **OPTIONS.get(name, {})), tmp_path, shared)


@pytest.mark.parametrize("check", SPECIMENS)
@pytest.mark.parametrize("rule", [ServerMomentum(), ServerAdam()], ids=["momentum", "adam"])
def test_server_optimiser_satisfies(
    rule: ServerOptimiser, check: str, tmp_path: Path, shared: dict[str, Callable[..., None]]
) -> None:
    _apply(check, toy.with_server("fedavg", rule), tmp_path, shared)


@pytest.mark.parametrize("check", SPECIMENS)
@pytest.mark.parametrize(
    ("name", "options"),
    [("fedavg", {}), ("apfl", {}), ("fedem", {"keep_momentum": True}), ("fedsr", {"keep_momentum": True})],
)
def test_training_by_adam_satisfies(
    name: str, options: dict[str, object], check: str, tmp_path: Path, shared: dict[str, Callable[..., None]]
) -> None:
    _apply(check, toy.by_adam(toy.builder(name, **options)), tmp_path, shared)


AT_CLIENTS = ["engines_agree", "resumes_exactly", "inputs_unchanged", "padding_invisible", "maps_over_clients",
              "hard_clients", "declaration_fits", "newcomers_join"]  # fmt: skip
KEEPING = [
    *(("fedavg", pattern, check) for pattern in ("head", "*bias") for check in SPECIMENS),
    *((name, "body.1.bias", check) for name in ("fedavg_ft", "fedprox", "ditto", "fedrep", "fedper", "fedpac",
                                                "pfedfda", "fedshrink", "fedlda", "fedcr") for check in AT_CLIENTS),
]  # fmt: skip


@pytest.mark.thorough(but=["fedavg-head-*", "ditto-*", "fedrep-*", "fedpac-*", "pfedfda-*"])
@pytest.mark.parametrize(("name", "pattern", "check"), KEEPING)
def test_a_method_whose_clients_keep_weights_satisfies(
    name: str, pattern: str, check: str, tmp_path: Path, shared: dict[str, Callable[..., None]]
) -> None:
    _apply(check, toy.keeping(name, pattern), tmp_path, shared)


@pytest.mark.parametrize("check", ["engines_agree", "resumes_exactly", "inputs_unchanged", "relabelling_invisible",
                                   "hard_clients", "newcomers_join", "predicts_probabilities"])  # fmt: skip
@pytest.mark.parametrize("name", ["fedavg", "ditto", "pfedfda"])
def test_normalisation_that_stays_satisfies(
    name: str, check: str, tmp_path: Path, shared: dict[str, Callable[..., None]]
) -> None:
    """FedBN: its weights and its statistics stay at the client."""
    _apply(check, toy.normalised(toy.keeping(name, "normalisation")), tmp_path, shared)


@pytest.mark.parametrize(("check", "specimen"), [(c, s) for c, every in SPECIMENS.items() for s in every])
def test_check_finds(check: str, specimen: toy.Build, tmp_path: Path, shared: dict[str, Callable[..., None]]) -> None:
    with pytest.raises((AssertionError, RuntimeError)) as caught:
        _apply(check, specimen, tmp_path, shared)
    assert caught.type is AssertionError or check == "maps_over_clients", "only vmap itself may refuse otherwise"


NORMS = ["inputs_unchanged", "hard_clients", "declaration_fits", "newcomers_join", "predicts_probabilities"]
WITH_NORMS = [
    *((name, check) for name in methods.names() for check in NORMS if (name, check) != ("fedcgs", "hard_clients")),
    *((name, check) for check in ("engines_agree", "resumes_exactly", "relabelling_invisible", "one_participant")
      for name in ("fedavg", "scaffold", "ditto", "fedem", "fedkd", "floco", "fedpac", "pfedfda", "fedcr",
                   "fedshrink")),
]  # fmt: skip
"""The last four carry all arrays of a state alike: some methods, whose states have every form, stand for all. FedCGS
takes no step, and its features of one sample alone are 0 after a batch normalisation: nothing shows that it was there.
"""


LONGER: dict[str, dict[str, object]] = {"fedper": {"tuning_epochs": 10}, "pfedhn": {"steps": 40}}  # with few samples


@pytest.mark.kinds
@pytest.mark.parametrize(("name", "check"), WITH_NORMS)
def test_method_satisfies_with_batch_normalisation(
    name: str, check: str, tmp_path: Path, shared: dict[str, Callable[..., None]]
) -> None:
    """But the checks of padding and of mapping over clients, which such a network refuses."""
    options = LONGER.get(name, {}) if check == "newcomers_join" else OPTIONS.get(name, {})
    _apply(check, toy.normalised(toy.builder(name, **options)), tmp_path, shared)


@pytest.mark.parametrize(("check", "specimen"), list(ON_NORMS.items()))
def test_check_finds_what_is_broken_with_normalisation_alone(
    check: str, specimen: toy.Build, tmp_path: Path, shared: dict[str, Callable[..., None]]
) -> None:
    _apply(check, specimen, tmp_path, shared)
    with pytest.raises(AssertionError):
        _apply(check, toy.normalised(specimen), tmp_path, shared)


def test_every_check_has_a_specimen() -> None:
    written = {
        n for n, f in vars(checks).items() if callable(f) and getattr(f, "__module__", "") == "checks" and n[0] != "_"
    }
    assert written == set(SPECIMENS)


def _alone(build: toy.Build) -> Iterator[torch.Tensor]:
    """What a single client predicts before the first round, and after three rounds of full batches."""
    training = Training(2, toy.SIZES[0], SGD(lr=0.1, momentum=0))
    task, whole = replace(toy.task(), clients=1, training=training), toy.data()
    data = replace(whole, train=whole.train[:1], test=whole.test[:1], shifts=("",))
    job = Job("alone", partial(build, task), data, 5)
    method, state = build(task), begin(build(task), 1, 5)
    for rounds in (0, 3):
        if rounds:
            state = fit(job, Sequential(), rounds=rounds, state=state)
        down = method.send(state.server, torch.tensor([0]))
        yield method.predict(Down(down.shared, tree.rows(down.own, 0)), state.clients[0], whole.x_R)


AS_LOCAL: list[tuple[str, dict[str, object]]] = [
    ("fedavg", {}), ("fedavg_ft", {}), ("fedprox", {"mu": 0.0}), ("scaffold", {}), ("fedper", {}), ("lg_fedavg", {}),
    ("fedem", {"models": 1}), ("hypcluster", {"clusters": 1}), ("ditto", {"pull": 0.0}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options"), AS_LOCAL, ids=[name for name, _ in AS_LOCAL])
def test_with_one_client_and_full_batches_it_is_training_alone(name: str, options: dict[str, object]) -> None:
    (start, end), (local_start, local_end) = _alone(toy.builder(name, **options)), _alone(toy.builder("local"))
    assert torch.equal(start, local_start)
    torch.testing.assert_close(end, local_end, atol=1e-6, rtol=0)
    assert (end - start).abs().max() > 0.01, "nothing was trained"


def test_a_start_of_its_own_is_seen_with_one_client() -> None:
    (start, end), (local_start, local_end) = _alone(own_start), _alone(toy.builder("fedavg"))
    assert (start - local_start).abs().max() > 0.01
    assert (end - local_end).abs().max() > 1e-3


def test_all_methods_have_a_model_that_starts_alike_but_the_one_that_generates_it() -> None:
    """Where nothing of a method looks like a model, ``starts_alike`` has nothing to compare."""
    start, without = toy.task().network.init(keys.start(3)), set()
    for name in methods.names():
        state = begin(toy.builder(name)(toy.task()), len(toy.SIZES), 3)
        if not checks._models({"server": state.server, "client": state.clients[0]}, start):
            without.add(name)
    assert without == {"pfedhn"}


@pytest.mark.parametrize("name", methods.names())
def test_what_is_to_be_drawn_is_reported(name: str) -> None:
    """A name in REPORTS that no function reports is a slip, and its figure would be missing without a word."""
    method = toy.builder(name, **OPTIONS.get(name, {}))(toy.task())
    down = method.send(method.init_server(toy.key()), torch.tensor([0]))
    down = down._replace(own=tree.rows(down.own, 0))
    _, up, told = method.local(down, method.init_client(toy.key(), torch.tensor(0)), toy.rows(toy.data(), 0), toy.key())
    _, info = method.aggregate(
        method.init_server(toy.key()), reduced(method.reduce, tree.stack([up])), torch.tensor([0])
    )
    wanted = set(methods.get(name).reports)
    reported = {*told, *info}
    assert wanted <= reported, f"REPORTS of {name} has {sorted(wanted)}, and what is reported is {sorted(reported)}"


OTHER = {
    "head_epochs": 3, "predict_with": {"fedcr": "logits", "fedproto": "prototypes", "fedtgp": "head"},
    "tuning_epochs": 2, "joining_steps": 1, "joining_epochs": 1, "samples": 2, "tune_body": True, "personal": "own",
    "folds": 2, "share_samples": 1.0, "min_count_adapt": 1, "drop_last_adapt": True, "tuning": "all",
    "tuning_steps": 2, "head_ridge": 0.1, "prior": "own",
}  # fmt: skip


@pytest.mark.kinds
@pytest.mark.parametrize(
    ("name", "option"), [(name, option) for name in methods.names() for option in methods.get(name).personal]
)
def test_what_a_method_calls_personal_changes_no_round(name: str, option: str) -> None:
    """Built by the method's own function, not by the registry, which takes the rounds with the option's default."""
    other: Any = OTHER[option][name] if isinstance(OTHER[option], dict) else OTHER[option]
    build, usual = methods.get(name).build, methods.settle(name, OPTIONS.get(name, {}))
    assert usual[option] != other
    ends = []
    for options in (usual, usual | {option: other}):
        method = build(toy.task(), **options)
        with Sequential() as engine:
            ends.append(fit(Job(name, lambda personal=True, m=method: m, toy.shared(), 3), engine, rounds=2))
    assert ends[0].equals(ends[1])
