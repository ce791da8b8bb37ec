"""A site's personal model beside the global and a local one, on the site's own test samples: do no harm."""

from __future__ import annotations

from pathlib import Path

import torch

from idiolect.core import files, tree
from idiolect.core.errors import InputError, blame
from idiolect.core.method import Data
from idiolect.core.tree import Tree
from idiolect.deploy import harm
from idiolect.deploy.bundle import Bundle, Personal, log_probabilities
from idiolect.deploy.global_model import receives
from idiolect.deploy.join import Candidates, ship
from idiolect.deploy.samples import Samples
from idiolect.engines.threads import OneThread
from idiolect.federation.data.samples import SiteFiles, SiteSamples, division_of
from idiolect.federation.site.personal_model import SiteModel, fingerprint, learnt


def join(model: SiteModel, samples: SiteFiles, out: Path, *, ships: harm.Name | None = None) -> Bundle:
    """Compare a site's models on its test samples, and write what does best as a bundle, with a page.

    The global model is what the server sent, with the state that the site kept in training, where the method predicts
    with what it receives (see ``idiolect.deploy.global_model.receives``); the personal one is that of the state folder;
    the local one is trained on the site's training samples alone, if they are enough. The federation has trained on the
    site's training samples, so only its test samples compare the three fairly.

    Args:
        model: the site's.
        samples: those with which it took part.
        out: a new or empty folder.
        ships: the model to take whatever the comparison says; None takes its choice.

    Raises:
        InputError: the samples are others, or cannot be compared on, or the folder is not empty.
        RunError: a model cannot be made, or the disk is full.
    """
    files.vacant(out)
    ready = _own(model, samples)
    learnt_N = learnt(ready.truth_N, model.cell.agreement)
    y_N = learnt_N[ready.test_N]
    if y_N.ndim == 1 and len(set(y_N.tolist())) < 2:
        raise InputError(
            f"all {len(y_N)} test samples of {model.cell.site} are of one class, which compares no models: predict "
            "with its state folder, or export that"
        )
    seen = model if ready.raw_N is None else model.on_features()
    y_R = learnt_N if y_N.ndim == 1 else learnt_N.to(torch.get_default_dtype())
    rows = Data(ready.x_N, y_R, ready.train_N, torch.ones(len(ready.train_N)), group_R=ready.groups)
    group_N = None if ready.group_N is None else ready.group_N[ready.test_N]
    down = seen.model().down

    def client_of(name: harm.Name, client: Tree) -> Tree:
        with blame(f"the {name} model, {len(ready.train_N)} samples"):
            return tree.copy(seen.methods[name].personalise(down, tree.copy(client), rows, seen.key()))

    with OneThread():
        clients: dict[harm.Name, Tree] = {"global": client_of("global", seen.before)} if receives(seen) else {}
        clients["personal"] = seen.model().client
        if len(ready.train_N) >= harm.FEW_FOR_LOCAL:
            clients["local"] = client_of("local", seen.fresh)
        x_N = ready.x_N[ready.test_N]
        logp: dict[harm.Name, torch.Tensor] = {
            name: log_probabilities(Personal(down, client), seen.methods[name], x_N).double()
            for name, client in clients.items()
        }
        candidates = Candidates(clients, harm.choice_of(logp, y_N, seen.key("folds"), group_N, seen.judge))
    return ship(model, candidates, Samples(x_N, y_N, group_N), out, name=model.cell.site, ships=ships)


def _own(model: SiteModel, samples: SiteFiles) -> SiteSamples:
    cell = model.cell
    inputs, classes = cell.agreement.inputs, cell.agreement.classes
    own = samples.encode(
        inputs, classes, cell.study.data_seed, cell.number, look=inputs.kind == "table",
        labels=cell.agreement.labels, **division_of(cell.study),
    )  # fmt: skip
    if fingerprint(own) != model.fingerprint:
        raise InputError(
            f"{samples.where} is not the data with which {cell.site} took part: give the same files, so that the "
            "models are compared on samples that none of them was trained on"
        )
    return own if model.features is None else model.features.of(cell.study, own)
