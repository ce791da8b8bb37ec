"""Joining: a site that did not train gets its own model, compared with others before it ships."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from idiolect.core import files, tree
from idiolect.core.errors import InputError, blame
from idiolect.core.method import Data
from idiolect.core.tree import Tree
from idiolect.deploy import card, harm, harm_of_labels, labels, numbers, reference
from idiolect.deploy.about_file import with_memory
from idiolect.deploy.bundle import Bundle, Personal, log_probabilities, write
from idiolect.deploy.global_model import NO_GLOBAL
from idiolect.deploy.groups import scores_of
from idiolect.deploy.on_features import on_features
from idiolect.deploy.samples import Samples
from idiolect.deploy.schema import About, Site
from idiolect.engines.threads import OneThread
from idiolect.simulation import errors_of_numbers, label_measures


class Candidates(NamedTuple):
    """A site's models, and what their comparison found."""

    clients: dict[harm.Name, Tree]
    """The client's state with the global model, if there is one, the personal model, and with the local one where
    there are enough samples."""
    choice: harm.Choice

    def client(self, weights: Mapping[harm.Name, float]) -> Tree:
        """The state of a client that predicts by these weights."""
        own = {name: self.clients[name] for name in weights}
        return own if len(own) > 1 else next(iter(own.values()))


def candidates_of(bundle: Bundle, samples: Samples, *, client: int | None = None) -> Candidates:
    """A site's models, made from its samples and compared on them by cross-validation.

    Args:
        bundle: what a new client gets.
        samples: the site's.
        client: the site's number, on which the draws of a method that has some depend; None takes that of the run's
            first new client.

    Raises:
        InputError: the bundle holds models that are ready, or the samples cannot be compared on.
        RunError: a model cannot be made from these samples.
    """
    if bundle.about.kind != "join":
        raise InputError(f"{bundle.folder} holds personal models, which cannot join: give what idiolect bundle wrote")
    bundle, samples = on_features(bundle, samples)
    y_N, count = samples.y_N, len(samples.y_N)
    if y_N.ndim == 1 and len(set(y_N.tolist())) < 2:
        raise InputError(f"all {count} samples are of one class: give samples of two classes or more")
    if count < 2:
        raise InputError(f"{count} sample compares no models: give two or more")
    learnt_N = y_N if y_N.ndim == 1 else y_N.to(torch.get_default_dtype())
    down, key = bundle.model().down, bundle.key(client=client)
    names: list[harm.Name] = ["global"] if bundle.has_global else []
    names += ["personal", "local"] if count >= harm.FEW_FOR_LOCAL else ["personal"]

    def client_of(name: harm.Name, row_N: Tensor) -> Tree:
        """The client's state from some of the samples, with the draws that the simulator makes.

        That of the global model depends on them only where the network measures its batch normalisation at the client.
        """
        data = Data(samples.x_N, learnt_N, row_N, torch.ones(len(row_N)), group_R=samples.groups)
        with blame(f"the {name} model, {len(row_N)} samples"):
            return tree.copy(bundle.methods[name].personalise(down, tree.copy(bundle.fresh), data, key))

    def fit(name: harm.Name) -> harm.Fit:
        def from_rows(row_N: Tensor) -> Callable[[Tensor], Tensor]:
            model = Personal(down, client_of(name, row_N))
            return lambda held: log_probabilities(model, bundle.methods[name], tree.rows(samples.x_N, held)).double()

        return from_rows

    with OneThread():
        key_of_folds = bundle.key("folds", client)
        fits = {name: fit(name) for name in names}
        choice = harm.compare(fits, y_N, key_of_folds, samples.group_N, bundle.judge)
        every = torch.arange(count)
        return Candidates({name: client_of(name, every) for name in names if name in choice.outputs}, choice)


def join(
    bundle: Bundle, samples: Samples, out: Path, *, client: int | None = None, ships: harm.Name | None = None
) -> Bundle:
    """Make a site's model and write it as a bundle, with a page that says how it was chosen.

    Args:
        bundle: what a new client gets.
        samples: the site's.
        out: a new or empty folder.
        client: see ``candidates_of``.
        ships: the model to take whatever the comparison says; None takes its choice.

    Raises:
        InputError: as ``candidates_of``, the folder is not empty, or there are too few samples for the model asked for.
        RunError: a model cannot be made, or the disk is full.
    """
    files.vacant(out)
    _, samples = on_features(bundle, samples)  # for the comparison, and for what is watched later
    return ship(bundle, candidates_of(bundle, samples, client=client), samples, out, client=client, ships=ships)


def ship(
    bundle: Bundle, candidates: Candidates, samples: Samples, out: Path, *, name: str = "this site",
    client: int | None = None, ships: harm.Name | None = None,
) -> Bundle:  # fmt: skip
    """Write a site's model after a comparison; see ``join``.

    Args:
        bundle: what the models were made of.
        candidates: the models.
        samples: on which they were compared.
        out: a new or empty folder.
        name: of the model.
        client: see ``candidates_of``.
        ships: see ``join``.

    Raises:
        InputError: the folder is not empty, or there is no such model.
        RunError: the disk is full.
    """
    from idiolect.deploy import page, page_of_labels, page_of_numbers

    files.vacant(out)
    weights = shipping_weights(candidates, ships)
    site = site_of(bundle.about, candidates, samples, weights)
    key = bundle.about.key.model_copy(update={} if client is None else {"client": client})
    about = bundle.about.model_copy(update={
        "kind": "models", "models": (name,), "key": key, "site": site, "files": {},
        "thresholds": labels.site_thresholds(bundle.about, candidates.choice.outputs[site.ships], samples.y_N),
    })  # fmt: skip
    about = with_memory(about, candidates.client(weights), len(samples.y_N))
    down = bundle.model().down
    text = page_of_numbers.text if about.targets else page_of_labels.text if about.labels else page.text
    more: dict[str, str | bytes] = {"report.html": text(about, candidates.choice, samples.y_N)}
    if len(samples.y_N) >= reference.LEAST and bundle.task.network.buffers != "local":
        said_N = candidates.choice.outputs[site.ships].argmax(1)
        with OneThread():
            more[reference.FILE] = reference.of_site(bundle, samples, said_N, bundle.key("watch", client))
    own = [(down.own, candidates.client(weights))]
    return write(out, about, down.shared, own, card.text(about), more=more)


def shipping_weights(candidates: Candidates, ships: harm.Name | None) -> dict[harm.Name, float]:
    """The weights of what ships: those of the comparison, or one model alone where it is asked for.

    Raises:
        InputError: there is no such model, or there are too few samples for it.
    """
    if ships is None:
        return candidates.choice.weights
    if ships == "global" and ships not in candidates.clients:
        raise InputError(f"{NO_GLOBAL}: take personal or local, or leave out ships")
    if ships not in candidates.clients:
        raise InputError(
            f"a local model needs {harm.FEW_FOR_LOCAL} samples or more: give {harm.FEW_FOR_LOCAL}, or leave out ships"
        )
    return {ships: 1.0}


def site_of(about: About, candidates: Candidates, samples: Samples, weights: Mapping[harm.Name, float]) -> Site:
    """What a bundle says of the site whose model has these weights."""
    choice, y_N = candidates.choice, samples.y_N
    ships: harm.Ships = "blend" if len(weights) > 1 else next(iter(weights))
    override = dict(weights) != choice.weights
    rows: dict[str, dict[str, float | None]] = {
        name: _measures(about, output, y_N) | (choice.difference[name]._asdict() if name in choice.difference else {})
        for name, output in choice.outputs.items()
    }
    site = Site(
        ships=ships, weights=dict(weights), samples=len(y_N), compared=rows, against=choice.against,
        why=f"it was asked for; by the comparison {choice.why}" if override else choice.why,
    )  # fmt: skip
    output = choice.outputs[ships]
    if about.targets:
        error_ND = numbers.unscaled(output, about.targets) - numbers.unscaled(y_N, about.targets)
        return site.model_copy(update={"errors": numbers.errors_of(error_ND, samples.group_N)})
    if about.labels:
        away_NL = labels.probabilities(output) - y_N
        return site.model_copy(update={"errors": numbers.errors_of(away_NL, samples.group_N)})
    scores, score_weights = scores_of(output.gather(1, y_N[:, None])[:, 0].exp(), samples.group_N)
    return site.model_copy(update={"scores": scores, "score_weights": score_weights})


def _measures(about: About, output: Tensor, y_N: Tensor) -> dict[str, float | None]:
    """Of what a model predicts of the site's samples."""
    if about.labels:
        p_NL = labels.probabilities(output)
        loss = -float(harm_of_labels.merit(output, y_N).mean())
        return {"loss": loss, **label_measures.of_predictions(p_NL, y_N, about.labels)}
    if not about.targets:
        return {"accuracy": _accuracy(output, y_N), "loss": _loss(output, y_N)}
    value_ND, y_ND = (numbers.unscaled(part, about.targets) for part in (output, y_N))
    return dict(errors_of_numbers.of_predictions(value_ND, y_ND, [target.name for target in about.targets]))


def _accuracy(logp_NC: Tensor, y_N: Tensor) -> float:
    return float((logp_NC.argmax(1) == y_N).double().mean())


def _loss(logp_NC: Tensor, y_N: Tensor) -> float | None:
    loss = float(torch.nn.functional.nll_loss(logp_NC, y_N))
    return loss if math.isfinite(loss) else None
