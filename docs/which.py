"""The tables of docs/which.md, from the files in results and from the code.

python docs/which.py [--check]      # --check writes nothing, and fails where the page is out of date
"""

from __future__ import annotations

import json
from pathlib import Path

import build
import generated
import natural
import numpy as np
import rivals
import tables

from idiolect import methods, models
from idiolect.methods import profile
from idiolect.report.measures import LESS_IS_BETTER

HERE = Path(__file__).parent
PAGE = HERE / "which.md"


def measured() -> list[str]:
    """A row for each method of the 24 settings: how good, for whom, and at what price."""
    frame, results, joins, missing = rivals.compared()
    if missing:
        return [f"{missing} of {frame.size} runs are missing. No result is looked at before all are there."]
    facts = rivals.means_of_facts(results)
    places = rivals.places_of(frame).mean()
    samples = frame.index.str.rpartition(", ").get_level_values(2)
    shown = ("50", "75", "300")
    lines = [
        f"| method | accuracy | place | {' | '.join(f'{n} samples' for n in shown)} | worst tenth | calibration error "
        "| a client that joins | joins by | cost | bytes | sums |",
        "| :-- |" + " --: |" * (len(shown) + 5) + " :-- | --: | --: | :-- |",
    ]
    network = models.build(build.NETWORK, build.SHAPE, build.CLASSES)
    cost = json.loads(build.COST.read_text())["methods"]
    unit = sent(profile.of("fedavg", {}, network, build.CLASSES, build.CLIENTS))
    for name in rivals.in_order(frame):
        known = profile.of(name, {}, network, build.CLASSES, build.CLIENTS)
        means = [frame[name][samples == n].mean() for n in shown]
        some = ["" if np.isnan(mean) else f"{mean:.1f}" for mean in means]
        worst, error = facts.loc[name, ["worst_decile", "calibration_error"]]
        entry = methods.get(name)
        lost = int(frame[name].isna().sum())
        mean = f"{frame[name].mean():.1f}" + (f" ({lost} diverged)" if lost else "")
        cells = [f"[{entry.title}](methods/{name}.md)", mean, f"{places[name]:.1f}", *some]
        cells += [f"{worst:.1f}", f"{error:.3f}", f"{joins[name].mean():.1f}", known.joins_by]
        cells += [
            f"{cost[entry.title]:.1f}" if entry.title in cost else "",
            f"{sent(known) / unit:.1f}",
            build.sums(known),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def sent(known: profile.Anatomy) -> int:
    """Bytes of a client in a round, both ways."""
    return known.down_shared.bytes + known.down_own.bytes + known.up_value.bytes + known.up_weight.bytes


def nature() -> list[str]:
    """A row for each source of clients as they are in nature."""
    lines = [
        "| clients | measure | Local | FedAvg | FedShrink | the best | |",
        "| :-- | :-- | --: | --: | --: | :-- | --: |",
    ]
    recipe = natural.tuned()
    for source in natural.SOURCES:
        there = natural.found(recipe, source)
        best = natural.best_of(there.values())
        if best is None:
            continue
        reads = best.cell.reads
        cells = [
            f"{there[m].mean:.1f}" if m in there and there[m].each else "" for m in ("local", "fedavg", "fedshrink")
        ]
        what = natural.header(reads) + (", less is better" if reads in LESS_IS_BETTER else "")
        lines.append(
            f"| [{source.replace('_', ' ')}](results/natural.md#{source.replace('_', '-')}) | {what} "
            f"| {' | '.join(cells)} | {best.title} | {best.mean:.1f} |"
        )
    return lines


def page() -> str:
    """The whole page."""
    return tables.with_table(PAGE, "nature", nature(), tables.with_table(PAGE, "measured", measured()))


def main() -> None:
    """Write or compare."""
    generated.settle({PAGE: page()}, check=generated.parser(__doc__).parse_args().check)


if __name__ == "__main__":
    main()
