"""Attackers, robust rules and privacy of a run, in words."""

from __future__ import annotations

from idiolect.core.errors import listed
from idiolect.core.option_spec import Spec
from idiolect.report.formatting import plain
from idiolect.runs.reader import Run


def facts(run: Run) -> list[tuple[str, str]]:
    """For the head of a page; none if the run had neither attackers nor a defence."""
    lines = []
    if run.attackers:
        by_attack: dict[str, list[int]] = {}
        for client, attack in run.attackers.items():
            by_attack.setdefault(attack, []).append(client)
        texts = [f"{plain(a)}: client{'s' * (len(who) > 1)} {listed(who)}" for a, who in by_attack.items()]
        lines.append(("Attacks", "; ".join(texts)))
    if run.study.get("robust"):
        lines.append(("Robust rule", plain(run.study["robust"]) + _refused(run)))
    if run.study.get("secure_aggregation"):
        lines.append(("Secure aggregation", "the server had the sum of each round's uploads alone"))
    if run.study.get("privacy"):
        spec = Spec.model_validate(run.study["privacy"])
        lines.append(("Privacy", f"{plain(spec)}; {epsilon(run)}{_refused(run)}"))
    return lines


def _refused(run: Run) -> str:
    """How many uploads were refused or scaled."""
    notes = run.records[run.records["stage"] == "server"]
    counts = {what: int((notes["metric"] == what).sum()) for what in ("refused", "scaled")}
    return "".join(f"; {count:,} upload{'s' * (count > 1)} {what}" for what, count in counts.items() if count)


def epsilon(run: Run) -> str:
    """What the run has spent: the same for all methods that send something, and for each client."""
    spent = run.select("server", "epsilon")
    if spent.empty:
        return "nothing is spent yet"
    delta = Spec.model_validate(run.study["privacy"]).options["delta"]
    value, rounds = float(spent["value"].max()), int(spent["round"].max())
    return f"client-level epsilon {value:.2f} at delta {delta:g} after {rounds} round{'s' * (rounds > 1)}"


def honest(run: Run) -> str:
    """Whose numbers are shown, in a sentence; "" if nobody attacks."""
    if not run.attackers:
        return ""
    count = sum(c["id"] not in run.attackers for c in run.manifest["clients"])
    return f"Accuracy is of the {count} honest clients: attackers ({listed(run.attackers)}) are recorded, not counted."


def caption(run: Run) -> str:
    """The same under the table of a terminal, with the privacy that was spent."""
    private = f"Privacy: {epsilon(run)}{_refused(run)}." if run.study.get("privacy") else ""
    return " ".join(filter(None, (honest(run), private)))
