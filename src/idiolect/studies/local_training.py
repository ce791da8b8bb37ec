"""How clients train: the settings that a study has for all its methods, and that a method may have for itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Self

import pydantic
from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from idiolect.core.errors import InputError
from idiolect.core.method import Augment
from idiolect.core.option_spec import Spec, complete
from idiolect.core.schedules import schedule_of
from idiolect.studies.naming import sentence
from idiolect.studies.settings import field
from idiolect.training.class_weights import class_weights_of
from idiolect.training.server_optimisers import server_optimiser_of

Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Decay = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_MAKERS: dict[str, Callable[[Spec], Any]] = {
    "lr_schedule": schedule_of, "server_optimiser": server_optimiser_of, "class_weights": class_weights_of,
}  # fmt: skip


class LocalTraining(BaseModel):
    """How clients train in a round, and what the server does with what they learned.

    Raises:
        InputError: a setting is unknown, misspelt or out of range.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", arbitrary_types_allowed=True, coerce_numbers_to_str=True, allow_inf_nan=False
    )
    local_epochs: PositiveInt = field("local_epochs")
    batch_size: PositiveInt = field("batch_size")
    optimiser: Literal["sgd", "adam", "adamw"] = field("optimiser")
    lr: Rate = field("lr")
    lr_schedule: Spec = field("lr_schedule")
    momentum: Annotated[float, Field(ge=0, lt=1)] = field("momentum")
    weight_decay: Decay = field("weight_decay")
    clip: Rate | None = field("clip")
    server_optimiser: Spec = field("server_optimiser")
    personal: Annotated[str, Field(min_length=1, max_length=1000)] | None = field("personal")
    class_weights: Spec = field("class_weights")
    augment: Augment = field("augment")
    drop_last: bool = field("drop_last")

    def __init__(self, /, **settings: Any) -> None:
        for name, value in settings.items():
            field = type(self).model_fields.get(name)
            if isinstance(value, bool) and field and field.annotation is not bool:  # pydantic reads true as 1
                raise InputError(f"{name}={str(value).lower()} is not valid: give a value, not true or false")
        try:
            super().__init__(**settings)
        except pydantic.ValidationError as error:
            raise InputError(sentence(error, type(self))) from None

    @pydantic.field_validator("lr_schedule", "server_optimiser", "class_weights")
    @classmethod
    def _completed(cls, spec: Spec, info: pydantic.ValidationInfo) -> Spec:
        return complete(spec, _MAKERS[str(info.field_name)])

    @pydantic.model_validator(mode="after")
    def _momentum_of_sgd(self) -> Self:
        if self.optimiser == "sgd":
            return self
        if self.momentum and "momentum" in self.model_fields_set:
            raise ValueError(
                f"momentum={self.momentum:g} is for optimiser=sgd, not {self.optimiser}: leave momentum out, or set "
                "it to 0"
            )
        object.__setattr__(self, "momentum", 0.0)
        return self

    def local_training(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """These settings by name, with those that a method has for itself.

        Raises:
            InputError: one of them is out of range, or they do not go together.
        """
        settings = {name: getattr(self, name) for name in LocalTraining.model_fields} | dict(own)
        if "momentum" not in own and (settings["optimiser"] != "sgd" or self.optimiser != "sgd"):
            del settings["momentum"]  # which a study has for its own sgd alone
        return dict(LocalTraining(**settings))


NAMES = tuple(LocalTraining.model_fields)
"""The settings that a method may have for itself."""


def checked(own: Mapping[str, Any]) -> dict[str, Any]:
    """A method's own settings, checked and as a file can hold them.

    Raises:
        InputError: one is out of range, or they do not go together.
    """
    values = LocalTraining(**own)
    return {name: _plain(getattr(values, name)) for name in NAMES if name in own}


def _plain(value: Any) -> Any:
    """A spec as the value of an option: ``adam(lr=0.01)``."""
    if not isinstance(value, Spec):
        return value
    name, colon, options = str(value).partition(":")
    return f"{name}({options})" if colon else name
