"""What is seen while a study runs: a live table in a terminal that never outgrows it, and plain lines elsewhere."""

from __future__ import annotations

import io
import re
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

import idiolect as idl
from idiolect.studies import Study
from idiolect.studies.progress import Bars, Lines, watcher

LONG = "fedcr:latent=64,beta=0.0005,samples=12,lr=0.05,objective=[log_mean]"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def engine(workers: int = 2, lanes: int = 2) -> Any:
    return SimpleNamespace(workers=workers, lanes=lanes, seconds=0.0)


def terminal(width: int = 80, height: int = 24) -> Console:
    return Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)


def written(console: Console) -> str:
    return re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", console.file.getvalue())  # type: ignore[attr-defined]


def lines(shown: Bars, width: int = 80, height: int = 24) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, color_system=None)
    console.print(shown.shown())
    return [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def test_lines() -> None:
    console = Console(file=io.StringIO(), width=40)
    shown = watcher(console)
    assert isinstance(shown, Lines)
    with shown:
        shown.plan(6, {("fedpac:[x]=0", 3): 4, ("fedpac:[x]=0", 4): 0, ("local", 3): 0}, engine())
        shown.start("fedpac:[x]=0", 3, 4)
        shown.advance("fedpac:[x]=0", 3, 5, None)
        shown.advance("fedpac:[x]=0", 3, 6, 0.5)
        shown.start("local", 3, 0)
    assert console.file.getvalue().splitlines() == [  # type: ignore[attr-defined]
        "fedpac:[x]=0: 4 of 12 rounds done",
        "fedpac:[x]=0: seed 3, round 6, accuracy 50.0%, 0 s",
        "local: 6 rounds",
    ]


def test_a_log_says_something_every_minute(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    monkeypatch.setattr("idiolect.studies.progress.time.monotonic", lambda: now[0])
    shown = Lines(Console())
    shown.plan(9, {("local", 0): 0}, engine())
    shown.start("local", 0, 0)
    for at, (stage, accuracy) in enumerate([(30.0, None), (61.0, None), (90.0, 0.5), (149.0, None), (150.0, None)], 1):
        now[0] = stage
        shown.advance("local", 0, at, accuracy)
    assert capsys.readouterr().out.splitlines() == [
        "local: 9 rounds",
        "local: seed 0, round 2, 61 s",
        "local: seed 0, round 3, accuracy 50.0%, 90 s",
        "local: seed 0, round 5, 150 s",
    ]


def test_a_live_row_per_method_and_seed_and_a_line_for_the_whole() -> None:
    clock, at = Clock(), engine()
    shown = Bars(terminal(), clock)
    shown.plan(10, {("local", 0): 10, ("fedavg", 0): 4, ("fedavg", 1): 0, ("fedpac", 0): 0}, at)
    shown.start("fedavg", 0, 4)
    shown.start("fedavg", 1, 0)
    clock.now, at.seconds = 10.0, 15.0
    shown.advance("fedavg", 0, 5, None)
    clock.now, at.seconds = 12.0, 18.0
    shown.advance("fedavg", 0, 6, 0.8125)
    shown.advance("fedavg", 1, 1, None)
    header, local, first, second, queued, whole = lines(shown)
    assert header.split() == ["method", "seed", "round", "accuracy", "left"]
    assert local.split()[0] == "local"
    assert local.split()[-2:] == ["10/10", "done"]
    assert first.split()[-4:] == ["6/10", "81.2%", "8.0", "s"], "2 s a round: the first, in which workers start, is out"
    assert second.split()[-3:] == ["1/10", "108", "s"], "one round of 12 s"
    assert queued.split()[-2:] == ["0/10", "queued"]
    # 8 s and 108 s are under way, and fedpac takes ten rounds at the mean of what is known: (2 + 12) / 2 = 7 s each.
    # That is 186 s, or 93 s two side by side, but no less than the longest.
    assert whole == "17 of 40 rounds; 2 running, 1 queued; 1.5 of 2 workers busy; 108 s left"


def test_what_diverges_is_no_longer_waited_for() -> None:
    clock, at = Clock(), engine()
    shown = Bars(terminal(), clock)
    shown.plan(10, {("local", 0): 0, ("fedavg", 0): 0}, at)
    shown.start("local", 0, 0)
    clock.now = 4.0
    shown.advance("local", 0, 2, None)
    shown.diverged("local", 0, 3)
    _, local, _, whole = lines(shown)
    assert local.split()[-2:] == ["2/10", "diverged"]
    assert whole.startswith("2 of 12 rounds; 0 running, 1 queued")
    said = terminal()
    Lines(said).diverged("local", 0, 3)
    assert written(said) == "local: seed 0, diverged in round 3\n"


def test_time_left_of_what_runs_one_after_another() -> None:
    clock = Clock()
    shown = Bars(terminal(), clock)
    shown.plan(5, {("a", 0): 0, ("a", 1): 0, ("b", 0): 0}, engine(1, 1))
    shown.start("a", 0, 0)
    assert "left" not in lines(shown)[-1], "nothing is known yet"
    clock.now = 3.0
    shown.advance("a", 0, 1, None)
    clock.now = 4.0
    assert lines(shown)[-1].endswith("; 0.0 of 1 worker busy; 41 s left"), "14 rounds of 3 s, 1 s of them gone"
    clock.now = 60.0
    assert lines(shown)[1].endswith(" 9.0 s"), "a round that takes longer than usual ends at once"


@pytest.mark.parametrize("height", [6, 8, 12, 30])
@pytest.mark.parametrize("width", [80, 120])
def test_never_more_than_the_terminal(width: int, height: int) -> None:
    shown = Bars(terminal(width, height))
    jobs = [(label, seed) for label in ("local", "fedavg", LONG, "fedpac") for seed in (0, 1, 2**63 - 1)]
    shown.plan(1000, dict.fromkeys(jobs, 0), engine())
    for k, job in enumerate(jobs[:8]):
        shown.start(*job, 0)
        shown.advance(*job, 1000 if k < 6 else 7, 0.5 + k / 100)
    found = lines(shown, width, height)
    assert len(found) < height
    assert max(map(len, found)) <= width
    assert found[-1].startswith("6014 of 12000 rounds; 2 running, 4 queued;")
    if height == 30:
        assert len(found) == 1 + 12 + 1
    else:
        assert "6 finished: local 51.0%, fedavg 54.0%" in found
        assert sum("7/1000" in line for line in found) == min(2, height - 5), "what runs goes last"
    if height in (6, 8):
        (queue,) = (line for line in found if line.startswith("4 queued: fedcr:latent=64"))
        assert ("fedpac x3" in queue) == (width == 120)


@pytest.mark.parametrize("width", [80, 120])
def test_in_a_terminal(width: int) -> None:
    console = terminal(width)
    shown = watcher(console)
    assert isinstance(shown, Bars)
    with shown:
        shown.plan(2, {(LONG, 0): 1, (LONG, 1): 0}, engine())
        shown.start(LONG, 0, 1)
        shown.advance(LONG, 0, 2, 0.875)
        shown.start(LONG, 1, 0)
        shown.advance(LONG, 1, 1, None)
    *_, first, second, whole = written(console).strip().splitlines()
    assert first.split()[-3:] == ["2/2", "87.5%", "done"]
    assert "1/2" in second
    assert whole.strip().startswith("3 of 4 rounds; 1 running, 0 queued; ")
    assert max(len(line.rstrip()) for line in (first, second, whole)) <= width


@pytest.mark.parametrize("how", [{"engine": "sequential"}, {"engine": "processes", "workers": 2}])
def test_of_a_run(tmp_path: Any, how: dict[str, Any]) -> None:
    study = Study(clients=4, rounds=2, local_epochs=1, model="mlp", methods="local,fedavg", seeds=(0, 1))
    console = terminal(100)
    idl.run(study, tmp_path / "r", watcher=Bars(console), **how)
    last = written(console).strip().splitlines()[-5:]
    assert [line.split()[0] for line in last[:4]] == ["local", "local", "fedavg", "fedavg"]
    assert all("2/2" in line and "%" in line and line.rstrip().endswith("done") for line in last[:4])
    assert last[4].strip().startswith("8 of 8 rounds; 0 running, 0 queued; ")
