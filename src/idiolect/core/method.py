"""The contract: a method is seven functions over three places (server, wire, client), two messages and a declaration.

A method is written for one client. Engines add the axis of the clients; a method does not know which engine runs it.
What a method's file needs is imported from here, from ``idiolect.training`` (local steps, passes through the body,
averages) and from the modules of ``idiolect.statistics``.

The functions are pure: what they return depends on their arguments alone, and they change nothing outside. There are
two exceptions, which only the library itself sets. Batch normalisation measures and uses statistics within
``Network.recording`` and ``Network.normalising`` (``idiolect.training.batchnorm``). ``tree.mapped`` says whether an
engine has mapped a function over clients; by it the library chooses between two ways to compute the same.

Suffixes of names give shapes: R samples of all clients, N samples of one client, B batch, S steps, K clients, m
participants, C classes, d features, V dimensions of a Gaussian code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, NamedTuple, Protocol

import torch
from torch import Tensor
from typing_extensions import TypeVar

from idiolect.core import keys, reduce, tree
from idiolect.core.inputs import is_integer
from idiolect.core.network import Model, Network, Weights, new_linear, watch
from idiolect.core.objectives import TaskName, cross_entropy, log_of_mean, log_probabilities
from idiolect.core.reduction import Reduced, Up
from idiolect.core.reports import ClientValue, PairValue
from idiolect.core.schedules import Constant, Schedule
from idiolect.core.tree import Tree

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "Aggregate",
    "Augment",
    "ClientValue",
    "Data",
    "Down",
    "Info",
    "InitClient",
    "InitServer",
    "Local",
    "Method",
    "Model",
    "Network",
    "Optimiser",
    "PairValue",
    "Personalise",
    "Predict",
    "Reduced",
    "Rounds",
    "Send",
    "StandBy",
    "Task",
    "Training",
    "Tree",
    "Up",
    "Weights",
    "as_floats",
    "keys",
    "new_linear",
    "reduce",
    "tree",
    "unchanged",
    "watch",
]

Info = dict[str, Tensor]
"""What a method reports, by metric. A client reports scalars; the server reports a value for each participant, (m,), or
for each pair of participants, (m, m). The table ``REPORTS`` of a method's file says how a run's page draws them: see
``idiolect.core.reports``."""
Augment = Literal["none", "crop_flip"]


class Down(NamedTuple):
    """Server to clients."""

    shared: Tree = ()
    """One copy for everyone: no client axis."""
    own: Tree = ()
    """One row per addressed client; () where a method has none. At a client: its own row."""


_ROUND = torch.zeros((), dtype=torch.int64)


class Blocks(NamedTuple):
    """Groups of samples that follow each other in time."""

    group_R: Tensor
    """The group of each sample, int64."""
    inner_R: Tensor
    """1 for a sample that is far enough from all samples of other groups to be predicted by a model of these, else
    0."""


class Data(NamedTuple):
    """One client's samples, by their numbers among the samples of all clients, and when it sees them."""

    x_R: Tree
    """Samples of all clients as stored: uint8 images, or floats with NaN where a value is missing. A tensor, or a tree
    of tensors where a sample has several."""
    y_R: Tree
    """Targets of all clients: labels (R,), int64; in a regression numbers (R, D), float32, of mean 0 and standard
    deviation 1 over all clients' training samples; of several labels of a sample 0 or 1 for each (R, L), float32."""
    row_N: Tensor
    """The numbers of this client's samples in ``x_R``; padding repeats some of them."""
    real_N: Tensor
    """1 for a sample, 0 for padding, which comes last."""
    round: Tensor = _ROUND
    """The number of the round, an int64 scalar; 0 where there is none, as in ``personalise``."""
    rounds: Tensor = _ROUND
    """The number of the last round, for schedules; 0 where there is none."""
    group_R: Tree = ()
    """Which samples belong together, int64, as those of one patient; ``Blocks`` where they are divided in time; ()
    where the samples have no groups."""


S = TypeVar("S", default=Any)
"""A server's state."""
C = TypeVar("C", default=Any)
"""A client's state."""
S_co = TypeVar("S_co", covariant=True)
C_co = TypeVar("C_co", covariant=True)
S_contra = TypeVar("S_contra", contravariant=True)
C_contra = TypeVar("C_contra", contravariant=True)


class InitServer(Protocol[S_co]):
    """Where the server starts."""

    def __call__(self, key: Tensor) -> S_co:
        """The server's state before the first round, a function of the key alone.

        Under one seed the key is the same for the server, for every client and for every method. The model is drawn
        with the key itself (``task.network.init(key)``), anything else with ``keys.fold(key, purpose)``.
        """


class InitClient(Protocol[C_co]):
    """Where every client starts."""

    def __call__(self, key: Tensor, id: Tensor) -> C_co:
        """A client's state before its first round.

        The key is common to all clients, as in the papers, and is the server's: the model starts alike at both. The
        number ``id`` is used by methods whose ``own_start`` is true; for the others the function is called once.
        """


class Send(Protocol[S_contra]):
    """What the server sends."""

    def __call__(self, server: S_contra, ids: Tensor) -> Down:
        """The message to these clients (m,), ascending. An unknown number is a new client's, not an error."""


class Local(Protocol[C]):
    """What a participant does in a round."""

    def __call__(self, down: Down, client: C, data: Data, key: Tensor) -> tuple[C, Up, Info]:
        """The client's new state, what it sends and what it reports, from what it received and what it has."""


class Aggregate(Protocol[S]):
    """What the server does with a round's uploads."""

    def __call__(self, server: S, up: Reduced, ids: Tensor) -> tuple[S, Info]:
        """The server's new state and what it reports, from the uploads as ``Method.reduce`` says.

        ``ids`` (m,) are the participants, ascending. Row k of a part of ``reduce.each`` is from client ``ids[k]``.
        """


class StandBy(Protocol[C]):
    """What a client does in a round that it was not drawn for."""

    def __call__(self, down: Down, client: C, data: Data, key: Tensor) -> C:
        """The client's new state, from the message that the participants got. It sends nothing."""


class Personalise(Protocol[C]):
    """How a client gets its personal model without the server."""

    def __call__(self, down: Down, client: C, data: Data, key: Tensor) -> C:
        """The client's state with its personal model; used for predictions and then forgotten."""


class Predict(Protocol[C_contra]):
    """What a client's model predicts."""

    def __call__(self, down: Down, client: C_contra, x_B: Tensor) -> Tensor:
        """Log-probabilities (B, C) of samples as stored, in a regression numbers (B, D); no randomness.

        Of several labels, the log-probabilities (B, L, 2) that a sample has not, and has, each.
        """


class Rounds(NamedTuple, Generic[S, C]):
    """The first six parts of a method, which make its rounds: ``Method(*rounds, personalise, predict)``.

    Methods whose rounds are the same objects train once: see ``idiolect.training.shared``.
    """

    init_server: InitServer[S]
    init_client: InitClient[C]
    send: Send[S]
    local: Local[C]
    reduce: Tree
    aggregate: Aggregate[S]


class Method(NamedTuple, Generic[S, C]):
    """Seven functions and a declaration. ``local``, ``personalise`` and ``predict`` are for one client."""

    init_server: InitServer[S]
    init_client: InitClient[C]
    send: Send[S]
    local: Local[C]
    reduce: Tree
    """How the server reduces each part of ``Up.value``: a tree of rules with its structure, in which a rule may stand
    for a whole part, made by ``reduce.mean``, ``increment``, ``sum`` and ``each``; () where nothing is sent."""
    aggregate: Aggregate[S]
    personalise: Personalise[C]
    predict: Predict[C]
    stand_by: StandBy[C] | None = None
    """What clients do that were not drawn; None: nothing."""
    full_rounds: tuple[int, ...] = ()
    """Rounds in which all clients take part, whatever the participation."""
    own_start: bool = False
    """Whether ``init_client`` depends on the client's number."""
    note: str = ""
    """A sentence that a study says once, where the method is on this task less than its name says; "" for none."""


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent as torch.optim.SGD defines it.

    ``clip`` bounds the global gradient norm. ``decay_biases=False`` exempts weights of one dimension from decay.
    """

    lr: float = 0.01
    momentum: float = 0.5
    weight_decay: float = 5e-4
    clip: float | None = None
    decay_biases: bool = True


@dataclass(frozen=True)
class Adam:
    """Adam as torch.optim.Adam defines it.

    ``weight_decay`` is an L2 penalty: that many times the weights is added to the gradient. ``clip`` and
    ``decay_biases`` are as in ``SGD``.
    """

    lr: float = 0.001
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip: float | None = None
    decay_biases: bool = True


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay, as torch.optim.AdamW defines it.

    In each step, lr times ``weight_decay`` times the weights is taken off them, beside Adam's own step.
    """

    weight_decay: float = 0.01


Optimiser = SGD | Adam | AdamW
"""The optimiser of a client's local steps."""


@dataclass(frozen=True)
class Training:
    """How a client trains in one round."""

    epochs: int = 5
    """Passes over the client's samples."""
    batch_size: int = 50
    """Samples of a step."""
    optimiser: Optimiser = field(default_factory=SGD)
    """The rule of a step, with its learning rate."""
    shuffle: bool = True
    """Whether each epoch has another order; False takes the stored one, for comparisons with recorded rounds."""
    augment: Augment = "none"
    """``crop_flip``: images are cropped and mirrored at random, with new draws in every step."""
    drop_last: bool = False
    """Whether an epoch leaves out the samples that do not fill a batch; a client with less than one batch keeps it."""
    schedule: Schedule = field(default_factory=Constant)
    """By which factor all learning rates are multiplied in which round."""


def as_floats(x_B: Tree) -> Any:
    """Samples in the default floating-point type, and ids as int64; otherwise as they are."""
    return tree.map(lambda a: a.long() if is_integer(a) else a.to(torch.get_default_dtype()), x_B)


@dataclass(frozen=True)
class Task:
    """What a method is told about the problem. ``loss``, ``output``, ``mixture`` and ``kind`` belong together."""

    network: Network
    """The network's two parts, body and head, without weights: ``task.network.init(key)`` draws these."""
    classes: int
    """C, the outputs of the network; in a regression the numbers of a target, D; of several labels L."""
    clients: int
    """K, the number of clients that train; new clients, who come after training, are not counted."""
    training: Training = field(default_factory=Training)
    """How a client trains in one round."""
    inputs: Callable[[Tree], Any] = as_floats
    """Turns samples as stored into what the network takes; a study uses ``idiolect.training.Preprocessing``."""
    loss: Callable[[Tensor, Tree], Tensor] = cross_entropy
    """A number (B,) for each sample, from what the network returns for a batch and the targets."""
    output: Callable[[Tensor], Tree] = log_probabilities
    """Turns what the network returns for a batch into what ``predict`` returns."""
    mixture: Callable[[Tensor, Tensor], Tensor] = log_of_mean
    """From weights (M,) and what M models predict (M, B, ...), what they predict together."""
    kind: TaskName = "classification"
    """What is learnt. A method that is defined for classes alone calls ``training.require_classes``."""


def unchanged(down: Down, client: C, data: Data, key: Tensor) -> C:
    """The default ``personalise``: the client stays as it is."""
    return client
