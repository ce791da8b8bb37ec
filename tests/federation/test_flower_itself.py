"""A study over Flower's own messages, records and apps; only what is between server and nodes is a stand-in."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from sites import study

from idiolect.federation.data.samples import SiteFiles
from idiolect.federation.server.conduct import result
from idiolect.federation.server.study import study_for
from rehearsal import rehearsed

flwr = pytest.importorskip("flwr.app", reason="needs the extra flower")


class _Node(NamedTuple):
    node_id: int
    last_activated_at: str
    config: dict[str, str]


class _Grid:
    """Calls the app of a node at once."""

    def __init__(self, nodes: list[_Node], run_config: dict[str, Any]) -> None:
        from idiolect.federation.flower import client_app

        self.app, self.run_config = client_app(), run_config
        self.nodes = {node.node_id: node for node in nodes}
        self._replies: dict[str, Any] = {}
        self._ids = itertools.count(1)

    def get_nodes(self) -> list[_Node]:
        return list(self.nodes.values())

    def push_messages(self, messages: Iterable[Any]) -> list[str]:
        ids = []
        for message in messages:
            node = self.nodes[message.metadata.dst_node_id]
            message.metadata.__dict__["_message_id"] = id = str(next(self._ids))
            context = flwr.Context(1, node.node_id, dict(node.config), flwr.RecordDict(), self.run_config)
            self._replies[id] = self.app(message, context)
            ids.append(id)
        return ids

    def pull_messages(self, ids: Iterable[str]) -> list[Any]:
        return [self._replies.pop(id) for id in list(ids) if id in self._replies]


def test_the_numbers_are_those_of_a_simulation(files: dict[str, Path], tmp_path: Path) -> None:
    from idiolect.federation.flower import server_app

    with suppress(ModuleNotFoundError):  # Flower's own processes set it, since 1.35
        from flwr.supercore.task_identity import TaskIdentity

        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 1
    study(tmp_path, "fedavg, pfedfda", rounds=2)
    nodes = []
    for k, (name, file) in enumerate(files.items()):
        settings = {"site": name, "data": str(file), "target": "label", "state": f"state-{name}"}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(settings))
        nodes.append(_Node(10 + k, "", {"idiolect": str(tmp_path / f"{name}.yaml")}))
    settings = {"sites": ",".join(files), "out": str(tmp_path / "run")}
    context = flwr.Context(1, 0, {}, flwr.RecordDict(), settings)
    server_app(tmp_path / "study.yaml")(_Grid(nodes, settings), context)
    samples = {name: SiteFiles(file, target="label") for name, file in files.items()}
    alone = rehearsed(study_for(tmp_path / "study.yaml", "trial"), samples, tmp_path / "simulated").records
    keys = ["method", "seed", "round", "client", "stage", "metric", "other"]
    both = result(tmp_path / "run").records.merge(alone, on=keys, how="outer", indicator=True)
    assert set(both["_merge"]) == {"both"}
    assert (both["value_x"] - both["value_y"]).abs().max() < 1e-6


def test_sums_without_keys_are_refused_before_a_site_is_asked(tmp_path: Path) -> None:
    from idiolect.core.errors import InputError
    from idiolect.federation.flower import server_app

    study(tmp_path, "fedavg", rounds=2, secure_aggregation=True)
    settings = {"sites": "north,south,east", "out": str(tmp_path / "run")}
    context = flwr.Context(1, 0, {}, flwr.RecordDict(), settings)
    with pytest.raises(InputError, match=r"make the app with --kit$"):
        server_app(tmp_path / "study.yaml")(_Grid([], settings), context)
