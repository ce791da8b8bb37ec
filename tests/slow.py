"""Which tests are slow: python tests/slow.py REPORT...; writes tests/slow.txt.

The reports are of ``pytest -n 3 --junitxml=REPORT``, and of the same with ``--slow``.

A test is slow if it takes more than FACTOR times the mean of all, so that the machine does not matter. ``make test``
leaves slow tests out, ``make slow`` runs them and nothing else, and continuous integration does both. What a fixture
costs is counted for the first test that asks for it; so some functions are named here, and files.
"""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

LIST = Path(__file__).with_name("slow.txt")
FACTOR = 5
WHOLE = (
    "tests/engines/test_ray.py", "tests/federation/test_hostile_processes.py", "tests/federation/test_processes.py",
)  # fmt: skip
"""Files whose tests share what costs most, or go on from what the ones before them left."""
ALWAYS = ("tests/contract/", "tests/test_settings.py",
          "tests/deploy/test_every_method.py::test_a_site_that_joins",
          "tests/federation/test_personal_model.py::test_a_sites_state",
          "tests/deploy/test_global_model.py::test_a_site_of_each_kind",
          "tests/cli/test_help_and_lists.py")  # fmt: skip
"""What each change should see at once, and functions whose first test pays for what their whole file shares."""


def slow(reports: list[Path]) -> list[str]:
    """Node ids, sorted; a function alone where all its tests are slow."""
    seconds: dict[str, float] = {}
    for one in (case for report in reports for case in ElementTree.parse(report).getroot().iter("testcase")):
        file = one.attrib["classname"].replace(".", "/") + ".py"
        seconds[f"{file}::{one.attrib['name']}"] = float(one.attrib["time"])
    limit = FACTOR * sum(seconds.values()) / len(seconds)
    chosen = {
        id for id, time in seconds.items()
        if time > limit and not id.startswith(ALWAYS) and not id.startswith(WHOLE)
    }  # fmt: skip
    functions = {id.partition("[")[0] for id in chosen} - {id.partition("[")[0] for id in seconds.keys() - chosen}
    return sorted({*WHOLE, *functions, *(id for id in chosen if id.partition("[")[0] not in functions)})


if __name__ == "__main__":
    LIST.write_text("".join(f"{id}\n" for id in slow([*map(Path, sys.argv[1:])])), encoding="utf-8")
