"""A run that takes on sites while it goes on: what was computed stays, and the new clients begin at its next round."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from idiolect.core import tree
from idiolect.core.errors import InputError
from idiolect.core.tree import Tree
from idiolect.runs import checkpoint
from idiolect.runs.folder import CHECKPOINT_FILE, cell_folder
from idiolect.simulation import Job, State, begin


def grow(folder: Path, before: Sequence[Job], after: Sequence[Job]) -> None:
    """Let the checkpoints of a run take on more clients.

    Each job of ``after`` is one of ``before`` with more clients at the end. What its server keeps for each client gets
    the first values of the new ones. It can be called again where it was interrupted.

    Raises:
        InputError: a method keeps something else for all clients together, or a checkpoint cannot be read.
        RunError: the disk is full or the folder cannot be written.
    """
    labels = list(dict.fromkeys(job.name for job in before))
    for old, new in zip(before, after, strict=True):
        path = cell_folder(folder, labels, old.name, old.seed) / CHECKPOINT_FILE
        if not path.exists():
            continue
        start = begin(new.build(), new.data.trained, new.seed)
        try:
            checkpoint.load(path, start)
            continue  # it has them already, or keeps nothing for each
        except InputError:
            state = checkpoint.load(path, begin(old.build(), old.data.trained, old.seed))
        start = begin(new.build(), new.data.trained, new.seed)
        server = _server_state(state.server, start.server, old.data.trained, old.name)
        for k, client in enumerate(state.clients):
            start.clients.put([k], [client])
        checkpoint.save(State(server, start.clients, state.round), path)


def _server_state(server: Tree, start: Tree, clients: int, name: str) -> Tree:
    """The server's state with the first values of new clients behind those of the old ones."""
    old, (new, build) = tree.named(server), (tree.named(start), tree.flatten(start)[1])
    leaves = []
    for path, leaf in new.items():
        before = old.get(path)
        if before is not None and before.shape == leaf.shape:
            leaves.append(before)
        elif (
            before is not None
            and before.ndim == leaf.ndim
            and {size for size, more in zip(before.shape, leaf.shape, strict=True) if size != more} == {clients}
        ):  # a row for each client, or a value for each pair
            whole = leaf.clone()
            whole[tuple(map(slice, before.shape))] = before
            leaves.append(whole)
        else:
            raise InputError(
                f"{name} cannot take on sites while it runs ({path}): start a new run with all sites, or let the new "
                "one join the finished run"
            )
    return tree.copy(build(leaves))
