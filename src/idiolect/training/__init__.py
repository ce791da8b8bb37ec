"""Building blocks that methods share: batches, local training, forward passes, averaging of weights."""

from idiolect.training.averaging import add, averaging
from idiolect.training.batches import Batch, batches, groups, inner, only, rows
from idiolect.training.client_state import Personal, joins_by_training, own_or, stateless, trained, untrained
from idiolect.training.optimisers import optimiser_state
from idiolect.training.personal_weights import with_personal_weights
from idiolect.training.preprocessing import Preprocessing
from idiolect.training.prototypes import batches_of_pairs, pairs, prototypes, upload
from idiolect.training.requirements import require_classes, require_linear_head, require_sgd, require_unweighted
from idiolect.training.settings import training_of
from idiolect.training.sgd import cross_entropy_mean, mean, sgd, sgd_from
from idiolect.training.sharing import shared
from idiolect.training.supervised import (
    ModelPart,
    batch_features,
    class_counts,
    features,
    log_softmax_of,
    row_losses,
    train_model,
    trained_loss,
)

__all__ = [
    "Batch",
    "ModelPart",
    "Personal",
    "Preprocessing",
    "add",
    "averaging",
    "batch_features",
    "batches",
    "batches_of_pairs",
    "class_counts",
    "cross_entropy_mean",
    "features",
    "groups",
    "inner",
    "joins_by_training",
    "log_softmax_of",
    "mean",
    "only",
    "optimiser_state",
    "own_or",
    "pairs",
    "prototypes",
    "require_classes",
    "require_linear_head",
    "require_sgd",
    "require_unweighted",
    "row_losses",
    "rows",
    "sgd",
    "sgd_from",
    "shared",
    "stateless",
    "train_model",
    "trained",
    "trained_loss",
    "training_of",
    "untrained",
    "upload",
    "with_personal_weights",
]
