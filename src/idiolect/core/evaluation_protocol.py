"""What a number means: whose models are measured, when, in which round, and how clients are averaged."""

from __future__ import annotations

from typing import Annotated, Literal, Self

import pydantic
from pydantic import BaseModel, ConfigDict, Field

from idiolect.core.option_spec import Spec, plain

Stage = Literal["received", "trained", "personalised"]
_MODELS: dict[Stage, str] = {
    "received": "the model as received",
    "trained": "the model after local training",
    "personalised": "the personal model",
}


Threshold = Literal["half", "f1", "balanced"]
"""From which probability on the second of two classes, or a label, is predicted."""


class Protocol(BaseModel):
    """What is measured, and which number is the result. The round that is best on test samples cannot be chosen.

    Attributes:
        clients: whose models count: "all" that train, the "participants" of the round, or the "new" clients that join
            after training.
        stage: "received": the model that the server sends, with what the client keeps; "trained": that model after the
            local training of the next round, where the server's step uses this client's upload alone; "personalised":
            after the method's ``personalise``, where each method makes its personal model.
        also: other stages that are measured too.
        round: the "last" round, or the evaluated round with the best mean validation accuracy, averaged as
            ``weighting`` says ("best_validation").
        validation: share of each client's training samples that is held out for validation.
        threshold: from which probability on the second of two classes, or a label, is predicted: from "half" on, or the
            threshold that has the largest F1 ("f1") or balanced accuracy ("balanced") on the client's validation
            samples. The score of these samples themselves is always at a half.
        weighting: the mean over clients counts every "client" once, or every "sample" that is measured.
        full_last_round: whether all clients take part in the last round, also where the participation is below one.
        observe: what is recorded besides the numbers: "gaussianity" of the representations at every evaluation,
            "features" of a few clients in two dimensions after the last round.

    Raises:
        pydantic.ValidationError: an unknown value, or values that do not go together.

    >>> print(Protocol(stage="received", weighting="sample", full_last_round=True))
    mean over the test samples of all clients of the model as received after the last round, in which all take part
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    clients: Literal["all", "participants", "new"] = "all"
    stage: Stage = "personalised"
    also: tuple[Stage, ...] = ()
    round: Literal["last", "best_validation"] = "last"
    validation: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = 0.0
    threshold: Threshold = "half"
    weighting: Literal["client", "sample"] = "client"
    full_last_round: bool = False
    observe: tuple[Literal["gaussianity", "features"], ...] = ()

    @pydantic.model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        return Spec.parse(f"protocol:{value}").options if isinstance(value, str) else value

    @pydantic.field_validator("also", "observe", mode="before")
    @classmethod
    def _joined(cls, value: object) -> object:
        return value.split("+") if isinstance(value, str) else value

    @pydantic.model_validator(mode="after")
    def _possible(self) -> Self:
        if self.round == "best_validation" and not self.validation:
            raise ValueError("round=best_validation needs samples to validate on: add validation=0.2")
        if self.threshold != "half" and not self.validation:
            raise ValueError(f"threshold={self.threshold} is chosen on samples to validate on: add validation=0.2")
        if self.threshold != "half" and self.clients == "new":
            raise ValueError(
                f"threshold={self.threshold} is chosen on validation samples, and new clients have none: leave one out"
            )
        if self.clients == "new" and (self.stage != "personalised" or self.round != "last"):
            raise ValueError(
                "clients=new is measured after the last round at stage=personalised: leave out stage and round"
            )
        return self

    @property
    def stages(self) -> tuple[Stage, ...]:
        """All stages that are measured, each once."""
        return tuple(dict.fromkeys((self.stage, *self.also)))

    def share(self, number: int, rounds: int, participation: float) -> float:
        """The share of the clients in round ``number`` of ``rounds``, where a method does not ask for all of them."""
        return 1.0 if self.full_last_round and number == rounds else participation

    def with_patience(self, patience: int, save_predictions: bool) -> Protocol:
        """The protocol of a study whose methods stop early: the round that is best on validation samples counts.

        Raises:
            ValueError: the protocol needs a last round that is known in advance, or has no validation samples.
        """
        if not self.validation:
            raise ValueError(f"patience={patience} needs samples to validate on: add protocol validation=0.2")
        if self.clients == "new":
            raise ValueError(
                f"patience={patience} and protocol clients=new do not go together, because the accuracy of new clients "
                "is that of the last round, and patience counts the round best on validation samples: leave one out"
            )
        if self.round == "last" and "round" in self.model_fields_set:
            raise ValueError(
                f"patience={patience} counts the round that is best on validation samples, not the last: leave "
                "protocol round=last out"
            )
        last = {
            "protocol full_last_round": self.full_last_round, "protocol observe=features": "features" in self.observe,
            "save_predictions": save_predictions,
        }  # fmt: skip
        if needs := [name for name, is_set in last.items() if is_set]:
            raise ValueError(
                f"{needs[0]} needs a last round that is known in advance, and with patience={patience} it is not: "
                "leave one of them out"
            )
        return self.model_copy(update={"round": "best_validation"})

    def __str__(self) -> str:
        return self.said()

    def said(self, clients: str = "", samples: Literal["test", "validation"] = "test") -> str:
        """The protocol in words; ``clients`` says whose models count, if not all that it asks for do.

        ``samples`` are those that are measured; new clients have no validation samples.

        >>> Protocol().said("3 of 4 clients")
        'mean over 3 of 4 clients of the personal model after the last round'
        """
        over = "" if self.weighting == "client" else f"the {samples} samples of "
        new = "new clients" if samples == "test" else "all clients that train"
        whose = {"all": "all clients", "participants": "the round's participants", "new": new}
        when = "the last round" if self.round == "last" else "the round best on validation samples"
        model = f"{_MODELS[self.stage]} after {when}"
        full = ", in which all take part" if self.full_last_round else ""
        best = {"f1": "F1", "balanced": "balanced accuracy"}.get(self.threshold)
        at = f", at each client's threshold of the best {best} on validation samples" if best else ""
        return f"mean over {over}{clients or whose[self.clients]} of {model}{full}{at if samples == 'test' else ''}"

    def written(self) -> str:
        """The text of the option: what differs from the defaults.

        >>> Protocol(stage="received", also=("personalised", "trained")).written()
        'stage=received,also=personalised+trained'
        """
        set_ = self.model_dump(exclude_defaults=True)
        return ",".join(f"{k}={'+'.join(v) if isinstance(v, tuple) else plain(v)}" for k, v in set_.items())
