"""What a number means: whose models are measured, when, in which round, and how clients are averaged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

import pydantic
from pydantic import BaseModel, ConfigDict, Field

from idiolect.core.option_spec import Spec, plain

Moment = Literal["received", "trained", "adapted"]
_MODELS = {
    "received": "the model as received",
    "trained": "the model after local training",
    "adapted": "the personal model",
}


class Protocol(BaseModel):
    """What is measured and which of it is *the* number. The best round on the test samples cannot be chosen.

    Attributes:
        clients: whose models count: "all" that train, the "participants" of the round, or the "new" clients that join
            after training.
        moment: "received": the model that the server sends, with what the client keeps; "trained": after the local
            training that the next round would do, the server's step taken with this client's upload alone; "adapted":
            after the method's ``adapt``, which is where each method makes its personal model.
        also: moments that are measured beside.
        round: the "last", or the evaluated round with the "best_validation" accuracy, the mean over clients.
        validation: share of each client's training rows that it is held back from training on, to measure on.
        weighting: the mean over clients counts every "client" once, or every test "row".
        full_last_round: whether every client takes part in the last round, whatever the participation.
        observe: what is recorded beside the numbers: "gaussianity" of the representations at every evaluation,
            "features" of a few clients in two dimensions after the last round.

    Raises:
        pydantic.ValidationError: a value that does not exist, or values that do not go together.

    >>> print(Protocol(moment="received", weighting="row", full_last_round=True))
    mean over the test rows of all clients of the model as received after the last round, in which all take part
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    clients: Literal["all", "participants", "new"] = "all"
    moment: Moment = "adapted"
    also: tuple[Moment, ...] = ()
    round: Literal["last", "best_validation"] = "last"
    validation: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = 0.0
    weighting: Literal["client", "row"] = "client"
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
            raise ValueError("round=best_validation needs rows to validate on: add validation=0.2")
        if self.clients == "new" and (self.moment != "adapted" or self.round != "last"):
            raise ValueError("clients=new are measured after the last round, adapted: leave moment and round out")
        return self

    @pydantic.model_serializer(mode="wrap")
    def _dumped(self, dump: pydantic.SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Nothing observed goes without saying: a study that observes nothing is the same as before."""
        return {k: v for k, v in dump(self).items() if k != "observe" or v}

    @property
    def moments(self) -> tuple[Moment, ...]:
        """All that are measured, each once."""
        return tuple(dict.fromkeys((self.moment, *self.also)))

    def __str__(self) -> str:
        over = "" if self.weighting == "client" else "the test rows of "
        whose = {"all": "all clients", "participants": "the round's participants", "new": "new clients"}
        when = "the last round" if self.round == "last" else "the round best on validation rows"
        model = f"{_MODELS[self.moment]} after {when}"
        full = ", in which all take part" if self.full_last_round else ""
        return f"mean over {over}{whose[self.clients]} of {model}{full}"

    def written(self) -> str:
        """As an option takes it: what differs from the defaults.

        >>> Protocol(moment="received", also=("adapted", "trained")).written()
        'moment=received,also=adapted+trained'
        """
        set_ = self.model_dump(exclude_defaults=True)
        return ",".join(f"{k}={'+'.join(v) if isinstance(v, tuple) else plain(v)}" for k, v in set_.items())


def protocol_of(study: Mapping[str, Any]) -> Protocol:
    """The protocol of a study as written; older ones have none and mean the default."""
    return Protocol.model_validate(study.get("protocol") or {})
