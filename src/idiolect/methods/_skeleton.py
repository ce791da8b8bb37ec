"""A method to copy: federated averaging of the body, with a head of its own for every client, as in FedPer.

Copy this file to ``<name>.py`` and give the function that name. Write the equations of the paper into the docstring,
each with a number. The same number marks the statements that implement it, and the documentation shows the two side by
side. ``REPORTS`` may say which metrics of ``info`` a run's page draws (by ``ClientValue`` and ``PairValue`` of
``idiolect.core.method``), as in ``pfedfda.py`` and ``fedpac.py``. The command line, the contract tests and the lists
find the file by themselves.
``tests/methods/test_<name>.py`` compares one round of it with numpy. In a package of your own, name the function under
the entry point group ``idiolect.methods``.
"""

from __future__ import annotations

from torch import Tensor

from idiolect.core.method import Data, Down, Method, Model, Task, Up, Weights, reduce, tree
from idiolect.training import (
    Personal,
    add,
    joins_by_training,
    log_softmax_of,
    train_model,
    trained,
    untrained,
)


def skeleton(task: Task) -> Method:
    """Title: what it is, in one line (authors, venue and year).

    Client:  (theta_i, phi_i) <- SGD(CE) from (theta, phi_i)                  (Eq. number)  [1]
    Server:  theta <- sum_i n_i theta_i / sum_i n_i                           (Eq. number)  [2]

    Up: increment of theta, weighted by n samples. Down: theta. At the client: phi_i. A new client does one round's
    local work and keeps phi_i.

    Args:
        task: the problem. Options follow as keywords; their annotations are their ranges.

    Source: algorithm, equations; released code where it decides a default.
    Differs from source: in nothing, or say in what.
    """

    def init_server(key: Tensor) -> Weights:
        return task.network.init(key).body

    def init_client(key: Tensor, id: Tensor) -> Personal:
        return untrained(task.network.init(key).head)

    def send(server: Weights, ids: Tensor) -> Down:
        return Down(shared=server)

    def local(down: Down, client: Personal, data: Data, key: Tensor) -> tuple[Personal, Up, dict[str, Tensor]]:
        model, loss = train_model(task, Model(down.shared, client.value), data, key)  # [1]
        return trained(model.head), Up(tree.sub(model.body, down.shared), data.real_N.sum()), {"train_loss": loss}

    def predict(down: Down, client: Personal, x_B: Tensor) -> Tensor:
        return log_softmax_of(task, Model(down.shared, client.value), x_B)

    parts = reduce.increment()  # [2]
    return Method(init_server, init_client, send, local, parts, add, joins_by_training(local), predict)  # [2]
