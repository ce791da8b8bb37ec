"""Broken methods for every check: each is sound but for one fault that peers have had, and its check must find it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from idiolect import methods
from idiolect.core import keys, tree
from idiolect.core.method import Data, Down, Method, Model, Task, Up, reduce, unchanged
from idiolect.training.batchnorm import with_statistics


def _fedavg(task: Task) -> Method:
    return methods.build("fedavg", {}, task)


def global_generator(task: Task) -> Method:
    """Draws from the process's own generator."""
    good = _fedavg(task)

    def local(down: Down, client: Any, data: Data, key: Tensor) -> Any:
        client, up, info = good.local(down, client, data, key)
        return client, Up(tree.map(lambda a: a + 0.01 * torch.rand_like(a), up.value), up.weight), info

    return good._replace(local=local)


def hidden_state(task: Task) -> Method:
    """Keeps the round in a closure, where no checkpoint sees it."""
    good, calls = _fedavg(task), [0]

    def aggregate(server: Any, up: Up, ids: Tensor) -> Any:
        calls[0] += 1
        server, info = good.aggregate(server, up, ids)
        return tree.map(lambda a: a * 0.9 ** calls[0], server), info

    return good._replace(aggregate=aggregate)


def writes_into_server(task: Task) -> Method:
    """Takes the server's step in place."""
    good = _fedavg(task)

    def aggregate(server: Any, up: Up, ids: Tensor) -> Any:
        tree.map(lambda a, b: a.add_(b), server, up.value)
        return server, {}

    return good._replace(aggregate=aggregate)


def counts_padding(task: Task) -> Method:
    """Weighs a client by the length of its padded tensor."""
    good = _fedavg(task)

    def local(down: Down, client: Any, data: Data, key: Tensor) -> Any:
        client, up, info = good.local(down, client, data, key)
        return client, Up(up.value, up.weight * 0 + len(data.row_N)), info

    return good._replace(local=local)


def adapts_to_padding(task: Task) -> Method:
    """Weighs a client's predictions by its class shares, padding counted."""
    good = _fedavg(task)

    def personalise(down: Down, client: Any, data: Data, key: Tensor) -> Tensor:
        return torch.bincount(data.y_R[data.row_N], minlength=task.classes) / len(data.row_N)

    def predict(down: Down, client: Tensor, x: Tensor) -> Tensor:
        return (good.predict(down, (), x) + (1 + client).log()).log_softmax(-1)

    return good._replace(personalise=personalise, predict=predict)


def order_of_arrival(task: Task) -> Method:
    """Hands personal heads back in another order than that in which they came."""
    good = methods.build("fedpac", methods.settle("fedpac", {}), task)

    def aggregate(server: Any, up: Up, ids: Tensor) -> Any:
        new, info = good.aggregate(server, up, ids)
        return new._replace(heads=tree.map(lambda a: a.index_copy(0, ids, a[ids.roll(1)]), new.heads)), info

    return good._replace(aggregate=aggregate)


def branches_on_data(task: Task) -> Method:
    """Asks a client's data a question in Python."""
    good = _fedavg(task)

    def local(down: Down, client: Any, data: Data, key: Tensor) -> Any:
        client, up, info = good.local(down, client, data, key)
        return client, up if bool(data.real_N.sum() > 6) else Up(up.value, up.weight * 2), info

    return good._replace(local=local)


def divides_by_class_count(task: Task) -> Method:
    """Forms class means without a thought for absent classes."""
    good = _fedavg(task)

    def local(down: Down, client: Any, data: Data, key: Tensor) -> Any:
        client, up, info = good.local(down, client, data, key)
        n_C = torch.bincount(data.y_R[data.row_N], minlength=task.classes)
        return client, up, info | {"spread": (n_C / n_C).sum()}

    return good._replace(local=local)


def skips_small_clients(task: Task) -> Method:
    """Drops the last batch even where it is the only one."""
    good = _fedavg(task)

    def local(down: Down, client: Any, data: Data, key: Tensor) -> Any:
        client, up, info = good.local(down, client, data, key)
        trained = float(len(data.row_N) >= task.training.batch_size)
        return client, Up(tree.map(lambda a: a * trained, up.value), up.weight), info

    return good._replace(local=local)


def unbiased_variance(task: Task) -> Method:
    """Divides by the number of participants less one."""
    good = _fedavg(task)

    def aggregate(server: Any, up: Up, ids: Tensor) -> Any:
        server = tree.add(server, tree.mean(up.value, up.weight_m))
        spread = tree.map(lambda a: (a - a.mean(0)).square().sum(0) / (len(ids) - 1), up.value)
        return tree.map(lambda a, b: a + 1e-3 * b, server, spread), {}

    return good._replace(reduce=reduce.each(), aggregate=aggregate)


def looks_ids_up(task: Task) -> Method:
    """Indexes a table of the clients it knows."""
    good = _fedavg(task)
    known = torch.zeros(task.clients, 1)
    return good._replace(send=lambda server, ids: Down(server, known[ids]))


def joins_untrained(task: Task) -> Method:
    """Leaves a new client with the weights it was initial with."""
    good = methods.build("local", {}, task)
    return good._replace(personalise=unchanged)


def raw_logits(task: Task) -> Method:
    """Forgets the softmax, so that mixtures and likelihoods go wrong."""
    good = _fedavg(task)
    return good._replace(predict=lambda down, client, x: task.network(down.shared, task.inputs(x)))


def batch_statistics(task: Task) -> Method:
    """Normalises a prediction by the batch it stands in."""
    good = _fedavg(task)

    def predict(down: Down, client: Any, x: Tensor) -> Tensor:
        logp = good.predict(down, client, x)
        return (logp - logp.mean(0)).log_softmax(-1)

    return good._replace(predict=predict)


def scale_unheld(task: Task) -> Method:
    """A head computed from a covariance without a floor, which turns rounding into points."""
    return methods.build("fedlda", methods.settle("fedlda", {"ridge": 0.02}), task)


def former_ridge(task: Task) -> Method:
    """FedLDA with the ridge that it once had: accuracy still holds here, a client's loss does not."""
    return methods.build("fedlda", methods.settle("fedlda", {"ridge": 0.1}), task)


def small_ridge(task: Task) -> Method:
    """pFedFDA with a ridge far below its default, of which its page says so."""
    return methods.build("pfedfda", methods.settle("pfedfda", {"ridge": 0.03}), task)


def weighs_by_another_name(task: Task) -> Method:
    """Declares a weight that the upload does not have."""
    return _fedavg(task)._replace(reduce=reduce.increment("samples"))


def weighs_by_another_shape(task: Task) -> Method:
    """Weighs one mean by numbers for each class."""
    good = _fedavg(task)

    def local(down: Down, client: Any, data: Data, key: Tensor) -> Any:
        client, up, info = good.local(down, client, data, key)
        return client, Up(up.value, torch.bincount(data.y_R[data.row_N], minlength=task.classes).double()), info

    return good._replace(local=local)


def leaves_a_part_out(task: Task) -> Method:
    """Declares the body alone, and sends the head too."""
    good = _fedavg(task)
    return good._replace(reduce={"body": reduce.increment()})


def another_form_for_some(task: Task) -> Method:
    """A client that lacks a class sends less."""
    good = _fedavg(task)

    def local(down: Down, client: Any, data: Data, key: Tensor) -> Any:
        client, up, info = good.local(down, client, data, key)
        lacks = len(data.y_R[data.row_N].unique()) < task.classes
        return client, Up(Model(up.value.body, {"weight": up.value.head["weight"]}), up.weight) if lacks else up, info

    return good._replace(local=local)


def increments_that_are_weights(task: Task) -> Method:
    """Sends weights, and calls them increments."""
    good = _fedavg(task)

    def local(down: Down, client: Any, data: Data, key: Tensor) -> Any:
        client, up, info = good.local(down, client, data, key)
        return client, Up(tree.add(up.value, down.shared), up.weight), info

    return good._replace(local=local, aggregate=lambda server, up, ids: (up.value, {}))


def increments_against_the_server(task: Task) -> Method:
    """The server steps away from where its clients went."""
    good = _fedavg(task)
    return good._replace(aggregate=lambda server, up, ids: (tree.sub(server, up.value), {}))


def reports_on_each(task: Task) -> Method:
    """A number for each participant, from a server that gets their sum alone."""
    good = _fedavg(task)

    def aggregate(server: Any, up: Up, ids: Tensor) -> Any:
        return good.aggregate(server, up, ids)[0], {"weight": up.weight}

    return good._replace(aggregate=aggregate)


def own_start(task: Task) -> Method:
    """Draws the clients' model with another key than the server's."""
    good = methods.build("local", {}, task)
    return good._replace(init_client=lambda key, id: good.init_client(keys.fold(key, "client"), id))


def start_of_each(task: Task) -> Method:
    """Lets a client's number decide where it starts, and does not say so."""
    good = methods.build("local", {}, task)
    return good._replace(init_client=lambda key, id: good.init_client(keys.fold(key, int(id)), id))


def own_head(task: Task) -> Method:
    """Draws the personal head anew."""
    good = methods.build("fedper", methods.settle("fedper", {}), task)
    return good._replace(init_client=lambda key, id: good.init_client(keys.fold(key, "head"), id))


def server_apart(task: Task) -> Method:
    """Starts the server, and not the clients, from a draw of its own."""
    good = methods.build("lg_fedavg", methods.settle("lg_fedavg", {}), task)
    return good._replace(init_server=lambda key: good.init_server(keys.fold(key, "server")))


def equal_components(task: Task) -> Method:
    """Starts all components of a mixture from one model, so that they stay alike."""
    good = methods.build("fedem", methods.settle("fedem", {}), task)

    def init_server(key: Tensor) -> Any:
        return tree.map(lambda a: a[:1].expand_as(a).clone(), good.init_server(key))

    return good._replace(init_server=init_server)


def keeps_norms(task: Task) -> Method:
    """FedBN whose new client has no weights of normalisation yet: sound on a network that has none."""
    good, names = methods.get("fedavg").build(task), task.network.normalisation

    def own_of(model: Model) -> dict[str, Tensor]:
        return {name: model.body[name] for name in names.body}

    def merged(model: Model, own: dict[str, Tensor]) -> Model:
        return model._replace(body=model.body | own)

    def init_client(key: Tensor, id: Tensor) -> Any:
        return tree.map(torch.zeros_like, own_of(task.network.init(key)))

    def local(down: Down, client: Any, data: Data, key: Tensor) -> Any:
        start = merged(down.shared, client)
        _, up, info = good.local(Down(start), (), data, key)
        trained = tree.add(start, up.value)
        sent = up.value._replace(body=up.value.body | {n: torch.zeros_like(up.value.body[n]) for n in names.body})
        return own_of(trained), Up(sent, up.weight), info

    def predict(down: Down, client: Any, x_B: Tensor) -> Tensor:
        return good.predict(Down(merged(down.shared, client)), (), x_B)

    fedbn = good._replace(init_client=init_client, local=local, personalise=unchanged, predict=predict)
    return with_statistics(fedbn, task)


ON_NORMS: dict[str, Callable[[Task], Method]] = {"newcomers_join": keeps_norms}
"""Broken only on a network that has normalisation."""

SPECIMENS: dict[str, list[Callable[[Task], Method]]] = {
    "engines_agree": [global_generator],
    "resumes_exactly": [hidden_state],
    "inputs_unchanged": [writes_into_server],
    "padding_invisible": [counts_padding, adapts_to_padding],
    "relabelling_invisible": [order_of_arrival],
    "maps_over_clients": [branches_on_data],
    "hard_clients": [divides_by_class_count, skips_small_clients],
    "one_participant": [unbiased_variance],
    "declaration_fits": [
        weighs_by_another_name,
        weighs_by_another_shape,
        leaves_a_part_out,
        another_form_for_some,
        reports_on_each,
    ],
    "increments_are_steps": [increments_that_are_weights, increments_against_the_server],
    "newcomers_join": [looks_ids_up, joins_untrained],
    "predicts_probabilities": [raw_logits, batch_statistics],
    "starts_alike": [own_start, start_of_each, own_head, server_apart, equal_components],
    "rounding_stays_small": [scale_unheld, former_ridge, small_ridge],
}
