"""The settings of a study: for each one description, one default and one option.

``Study`` takes its defaults and descriptions from here, the command line its options, and the documentation its table.
Nothing heavy is imported, so that help is quick.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field

from idiolect.core.defaults import USUAL_CLIENTS, USUAL_DATASET, USUAL_PARTITION
from idiolect.core.evaluation_protocol import Protocol
from idiolect.core.option_spec import Spec, plain

METHODS, DATA, PARTITION, SHIFTS, TRAINING, OUTPUT = "Methods", "Data", "Partition", "Shifts", "Training", "Output"
DEFENCE = "Privacy and attacks"
OWN_DATA = (
    "target", "task", "client_column", "group_column", "drop", "resize", "text", "tokens", "max_tokens", "header",
    "columns", "missing", "unlabelled", "categorical", "layout",
)  # fmt: skip
"""The settings that say how the user's own ``data`` are read."""


class Setting(NamedTuple):
    """One setting of a study.

    Attributes:
        group: the topic under which help lists it.
        about: the description, one or two sentences.
        default: its value unless given.
        unset: what its default means, if the value does not show it.
        type: of the value on the command line.
        repeat: whether its option is repeated, once for each value.
        metavar: the name of its value in help.
        option: its name on the command line if that differs, "" if only a file can give it.
        common: whether it is one of those that people use most.
    """

    group: str
    about: str
    default: Any = None
    unset: str = ""
    type: type = str
    repeat: bool = False
    metavar: str | None = None
    option: str | None = None
    common: bool = False

    @property
    def shown(self) -> str:
        """The default as help and documentation show it."""
        if self.unset or self.default is None:
            return self.unset
        return ",".join(map(plain, self.default)) if isinstance(self.default, tuple) else plain(self.default)


SETTINGS = {
    "methods": Setting(METHODS, "Methods, separated by commas.", ("fedavg", "fedavg_ft"), common=True),
    "model": Setting(
        METHODS, "Network: name, hf:NAME, module.function.", "auto", common=True
    ),
    "seeds": Setting(METHODS, "Seeds of training: 0,1,2 or 0-2.", (0,), common=True),
    "dataset": Setting(DATA, "Data set by name.", unset=USUAL_DATASET, common=True),
    "data": Setting(
        DATA,
        "Your own: CSV or parquet, sites/*.csv, folder of images, hf:owner/name or module.function.",
        metavar="WHERE", common=True,
    ),
    "target": Setting(
        DATA, "Column to predict.", unset="label, target, class, ...",
        metavar="COLUMN", common=True,
    ),
    "task": Setting(
        DATA,
        "What is learnt: classification; regression, taken for many different numbers; multilabel, taken for several "
        "columns of 0 and 1.",
        unset="decided by the target's values", metavar="TASK",
    ),
    "client_column": Setting(
        DATA, "Column that says which client a sample belongs to.", metavar="COLUMN"
    ),
    "group_column": Setting(
        DATA, "Column that says which samples belong together, as those of a patient: never on both sides of a split.",
        metavar="COLUMN",
    ),
    "drop": Setting(
        DATA, "Columns to leave out, joined by +; a name that has a + in double quotes.", (), metavar="COLUMNS"
    ),
    "resize": Setting(DATA, "Bring images to one size, as 32 or 32x24 (width x height).", metavar="SIZE"),
    "text": Setting(
        DATA, "Column of texts to learn from; several joined by + become one text. Other columns are not used.",
        metavar="COLUMN",
    ),
    "tokens": Setting(DATA, "What a text is divided into: words, characters or bytes.", unset="words"),
    "max_tokens": Setting(DATA, "Tokens of a text that are used; longer texts are cut.", unset="256", type=int),
    "header": Setting(
        DATA, "none says that the first line of a CSV file is a row; its columns are called 1, 2, ...",
        unset="the file's names of columns", metavar="none",
    ),
    "columns": Setting(
        DATA, "Names for the columns of a CSV or ARFF file without names, joined by +.", unset="the file's",
        metavar="COLUMNS",
    ),
    "missing": Setting(
        DATA, "Marks of missing values beside NA, ? and the like, joined by +: -9, or of one column chol=0.",
        metavar="MARKS",
    ),
    "unlabelled": Setting(
        DATA, "Rows whose target is missing: error, or drop to leave them out.", unset="error", metavar="HOW"
    ),
    "categorical": Setting(
        DATA, "Columns whose numbers are codes of categories, joined by +.", metavar="COLUMNS"
    ),
    "layout": Setting(
        DATA, "What the paths of images say, as {class}/{class}/*_{client}.", unset="client/class, or class",
        metavar="PATTERN",
    ),
    "data_dir": Setting(
        DATA, "Folder that holds DATASET/{train,test}.parquet.", unset="$IDIOLECT_DATA, else the hub", type=Path
    ),
    "normalise": Setting(
        DATA,
        "By the literature's mean and std for the set (reference), by those of the training samples (training), to "
        "-1..1 (symmetric), or not at all (none).",
        "reference",
    ),
    "clients": Setting(
        PARTITION, "Number of clients.", unset=f"{USUAL_CLIENTS}, or all of client column", type=int, common=True
    ),
    "partition": Setting(
        PARTITION, "How samples are split, or module.function.", unset=f"client column, else {USUAL_PARTITION}",
        common=True,
    ),
    "split": Setting(
        PARTITION,
        "Which samples of a client are for tests: any (random), or its last ones in the data's order, "
        "ordered:gap=0, with a gap of samples that are used for neither; with each_class=true the last of each class.",
        Spec(name="random"),
    ),
    "sizes": Setting(
        PARTITION, "Training samples per client: 600, or 300+600+1200 to draw one each.", (),
        unset="from the partition",
    ),
    "keep": Setting(
        PARTITION, "Keep 25% or 50 (samples) of each client's training samples.", unset="all"
    ),
    "new_clients": Setting(
        PARTITION, "Clients that do not train and get a model afterwards: the last 10 or 20%, or names joined by +; a "
        "name that has a + in double quotes.",
        unset="nobody",
    ),
    "data_seed": Setting(PARTITION, "Seed of the split and the shifts.", 0, type=int),
    "shifts": Setting(
        SHIFTS, "How some clients' samples differ, as corrupt:clients=0-49 or rotate:groups=4; repeat.", (),
        repeat=True, option="shift",
    ),
    "new_shifts": Setting(
        SHIFTS, "What else new clients are measured under, as corrupt:kind=each,severity=3; repeat.", (),
        repeat=True, option="new_shift",
    ),
    "rounds": Setting(TRAINING, "Communication rounds.", 30, type=int, common=True),
    "participation": Setting(TRAINING, "Share of the clients in each round.", 1.0, type=float),
    "local_epochs": Setting(TRAINING, "Epochs per client and round.", 5, type=int),
    "batch_size": Setting(TRAINING, "Samples per step.", 50, type=int),
    "optimiser": Setting(
        TRAINING,
        "Of the clients: sgd; or adam or adamw, which usually take a smaller learning rate, as 0.001.",
        "sgd",
    ),
    "lr": Setting(TRAINING, "Learning rate of the clients.", 0.01, type=float),
    "lr_schedule": Setting(
        TRAINING,
        "Learning rate over the rounds: constant, step:every=10,factor=0.1, exponential:factor=0.99 or "
        "cosine:end=0.0; each with warmup=0, in rounds.",
        Spec(name="constant", options={"warmup": 0}),
        unset="constant",
    ),
    "momentum": Setting(TRAINING, "Momentum of the clients' sgd.", 0.5, type=float),
    "weight_decay": Setting(
        TRAINING, "Weight decay of the clients: an L2 penalty, or with adamw decoupled.", 5e-4, type=float
    ),
    "clip": Setting(
        TRAINING, "Largest norm of the gradient in a client's step; a longer one is shortened.", unset="no bound",
        type=float,
    ),
    "server_optimiser": Setting(
        TRAINING,
        "What the server does with the mean increment: average adds it; or momentum:lr=1.0,momentum=0.9; or "
        "adam:lr=0.01,beta1=0.9,beta2=0.99,tau=0.001.",
        Spec(name="average"),
    ),
    "personal": Setting(
        TRAINING,
        "Weights that stay at each client: names such as body.1.* joined by +, or head, body, normalisation.",
        unset="those that a method keeps itself", metavar="PATTERN",
    ),
    "uploads": Setting(
        TRAINING, "What happens to every upload on its way, as clip:norm=1.0, noise:std=0.01, quantise:bits=8 or "
        "top_k:share=0.1; repeat.", (), repeat=True, option="upload",
    ),
    "privacy": Setting(
        DEFENCE,
        "Client-level differential privacy, as gaussian:norm=1.0,noise_multiplier=1.0,delta=1e-5; epsilon is recorded.",
    ),
    "robust": Setting(
        DEFENCE,
        "What the server does against hostile uploads: trimmed_mean:share=0.2, median, or norm_bound:multiple=2.0.",
    ),
    "secure_aggregation": Setting(
        DEFENCE,
        "The server gets the sum of a round's uploads alone, in a federation by masks; numbers are rounded to 2^-30.",
        False,
        type=bool,
    ),
    "attacks": Setting(
        DEFENCE,
        "What hostile clients do: sign_flip, label_flip, noise, nan or inflate, as sign_flip:clients=0-3; repeat.",
        (),
        repeat=True,
        option="attack",
    ),
    "class_weights": Setting(
        TRAINING,
        "What samples weigh in the loss by class: none, balanced, effective:beta=0.999, or numbers:weights=1+5 in the "
        "order of the classes.",
        Spec(name="none"),
    ),
    "augment": Setting(TRAINING, "Crop and mirror training images at random (crop_flip).", "none"),
    "drop_last": Setting(
        TRAINING, "Leave out the samples that do not fill a batch, others in each epoch.", False, type=bool
    ),
    "precision": Setting(
        TRAINING,
        "Of the networks' products: float32, or bf16 (bfloat16), which is faster on processors with instructions for "
        "it. Weights, updates and statistics are always float32.",
        "float32",
    ),
    "protocol": Setting(
        TRAINING,
        "What the number is: whose models, at which stage, in which round, how averaged; as stage=received or "
        "weighting=sample, joined by commas.",
        Protocol(),
        unset="every client's personal model after the last round, clients counting alike",
    ),
    "measures": Setting(
        TRAINING,
        "What is recorded for each client beside accuracy, balanced accuracy and macro F1: auroc, average_precision, "
        "recall, sensitivity, specificity, sensitivity:specificity=0.9, calibration; joined by commas, or repeat.",
        (),
        repeat=True,
        metavar="NAMES",
        option="measure",
    ),
    "evaluate_every": Setting(TRAINING, "Rounds between evaluations.", unset="a tenth of the rounds", type=int),
    "patience": Setting(
        TRAINING,
        "Stop a method after so many evaluations without a higher mean validation accuracy; the best round counts.",
        unset="no early stop", type=int,
    ),
    "save_predictions": Setting(
        OUTPUT, "Keep the class probabilities of all test samples after the last round.", False, type=bool
    ),
    "name": Setting(
        OUTPUT, "Name of the study, and of its folder unless another is given.", "study", option="",
        unset="study, or the name of your data's file",
    ),
    "checkpoint_every": Setting(OUTPUT, "Rounds between checkpoints.", 5, type=int, option=""),
}  # fmt: skip


def field(name: str, **more: Any) -> Any:
    """A pydantic field with the default and the description of this setting."""
    setting = SETTINGS[name]
    return Field(default=setting.default, description=setting.about, **more)
