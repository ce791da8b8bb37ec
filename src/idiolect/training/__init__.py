"""Building blocks that methods share: batches, local training, forward passes, averaging of weights."""

from idiolect.training.averaging import add_mean, combine_mean
from idiolect.training.batches import Batch, batches, rows
from idiolect.training.client_state import Personal, joins_by_training, own_or, trained, untrained
from idiolect.training.optimisers import optimiser_state, require_sgd
from idiolect.training.preprocessing import Preprocessing
from idiolect.training.settings import training_of
from idiolect.training.sgd import cross_entropy_mean, mean, sgd, sgd_from
from idiolect.training.supervised import (
    Part,
    batch_features,
    features,
    log_softmax_of,
    row_losses,
    train_model,
    trained_loss,
)

__all__ = [
    "Batch",
    "Part",
    "Personal",
    "Preprocessing",
    "add_mean",
    "batch_features",
    "batches",
    "combine_mean",
    "cross_entropy_mean",
    "features",
    "joins_by_training",
    "log_softmax_of",
    "mean",
    "optimiser_state",
    "own_or",
    "require_sgd",
    "row_losses",
    "rows",
    "sgd",
    "sgd_from",
    "train_model",
    "trained",
    "trained_loss",
    "training_of",
    "untrained",
]
