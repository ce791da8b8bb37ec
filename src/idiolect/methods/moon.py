"""MOON: federated averaging with a contrast between representations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat
from torch import Tensor
from torch.nn.functional import cosine_similarity, linear, relu, softplus

from idiolect.core.method import Data, Down, Method, Model, Task, Up, Weights, keys, new_linear, reduce, tree, unchanged
from idiolect.training import Batch, add, batch_features, batches, mean, rows, sgd, trained_loss

SEARCH = {"mu": "0.01..10:log", "temperature": "0.1..1:log"}
PRESETS: dict[str, dict[str, Any]] = {"official": {"projection": 256}}


def moon(
    task: Task,
    *,
    mu: NonNegativeFloat = 1.0,
    temperature: PositiveFloat = 0.5,
    projection: NonNegativeInt = 0,
) -> Method:
    """MOON: clients keep to the received representation and away from their last one (Li, He & Song, CVPR 2021).

    Client, with the received model w and its own last model p_i, both constant:
        w_i <- SGD(CE + mu contrast) from w                                                                   [1]
        contrast = -log(e_w / (e_w + e_p)) = log(1 + e_p / e_w),  e_a = exp(cos(z_i, z_a) / temperature)      [2]
        p_i <- w_i                                                                                            [3]
    Server, over the round's participants i:
        w <- w + sum_i n_i (w_i - w) / sum_i n_i                                                              [4]
    Representation:
        z = body(x), or with ``projection`` numbers of it z = B relu(A body(x) + a) + b, on which the head stands  [5]

    z_i, z_w and z_p are of the same samples, augmented alike. All clients start with p_i = w, so that the contrast has
    no gradient in the first round; a client that is first drawn later has the initial model as p_i. An absent client
    keeps p_i.

    Up: the increment w_i - w, weighted by n_i samples. Down: w. At the client: p_i. A new client takes the global model
    as it is.

    Args:
        task: the problem.
        mu: weight of the contrast (authors: 5 for CIFAR-10, 1 for CIFAR-100; they try 0.001 to 10).
        temperature: of the contrast (authors: 0.5, of 0.1, 0.5 and 1).
        projection: numbers that the representation is projected to by a layer of d units, relu and a linear layer; 0:
            none, so that the network is that of the other methods.

    Source: the paper's equations 3 to 5; released code (QinbinLi/MOON).
    Differs from source: paper and released code project, by default to 256 numbers, and give the other methods that
    they compare with the same network: ``preset="official"``. In the released code each client starts from a model of
    its own, and the first round, which has no model before it, has no contrast. It can keep several models before the
    last; with three or more, a slip makes all of them but one the same. It is left out.
    """
    network = task.network

    def init_server(key: Tensor) -> Model:
        model = network.init(key)
        if not projection:
            return model
        d, draw = network.width, keys.fold(key, "projection")
        sizes = {"hidden": (d, d), "projection": (d, projection), "output": (projection, task.classes)}
        layers = {name: new_linear(keys.fold(draw, name), *size) for name, size in sizes.items()}
        return model._replace(head={f"{name}.{part}": w for name, layer in layers.items() for part, w in layer.items()})

    def init_client(key: Tensor, id: Tensor) -> Model:
        return init_server(key)

    def layer(head: Weights, name: str, z_B: Tensor) -> Tensor:
        return linear(z_B, head[f"{name}.weight"], head[f"{name}.bias"])

    def represent(head: Weights, z_Bd: Tensor) -> Tensor:
        return layer(head, "projection", relu(layer(head, "hidden", z_Bd))) if projection else z_Bd  # [5]

    def output_of(head: Weights, z_B: Tensor) -> Tensor:
        return layer(head, "output", z_B) if projection else network.logits(head, z_B)  # [5]

    def send(server: Model, ids: Tensor) -> Down:
        return Down(shared=server)

    def local(down: Down, client: Model, data: Data, key: Tensor) -> tuple[Model, Up, dict[str, Tensor]]:
        w: Model = down.shared

        def known(m: Model) -> Callable[[Batch], tuple[Tensor, Tensor]]:
            return batch_features(task, m.body, data, then=lambda z_Nd: represent(m.head, z_Nd))

        received, before = known(w), known(client)

        def loss(model: Model, batch: Batch) -> tuple[Tensor, tuple[Tensor, ...]]:
            x_B, y_B = rows(task, data, batch)
            z_B = represent(model.head, network.features(model.body, task.inputs(x_B)))
            error = mean(task.loss(output_of(model.head, z_B), y_B), batch.used_B)
            near_B, far_B = (cosine_similarity(z_B, other(batch)[0], -1) for other in (received, before))
            contrast = mean(softplus((far_B - near_B) / temperature), batch.used_B)  # [2]
            return error + mu * contrast, (error, batch.used_B.sum(), contrast)  # [1]

        model, extras = sgd(loss, w, batches(data, task.training, key), task.training.optimiser)  # [1]
        info = {
            "train_loss": trained_loss([s[:2] for s in extras]),
            "contrast": trained_loss([(s[2], s[1]) for s in extras]),
        }
        return model, Up(tree.sub(model, w), data.real_N.sum()), info  # [3]

    def predict(down: Down, client: Model, x_B: Tensor) -> Tensor:
        body, head = down.shared
        value: Tensor = task.output(output_of(head, represent(head, network.features(body, task.inputs(x_B)))))
        return value

    return Method(init_server, init_client, send, local, reduce.increment(), add, unchanged, predict)  # [4]
