"""A site's policy: what its owner allows, checked before anything is trained and before anything is sent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pydantic
from pydantic import BaseModel, ConfigDict, Field

from idiolect.core.documents import read_yaml
from idiolect.core.errors import InputError, listed
from idiolect.core.version import __version__, digest
from idiolect.federation.messages import Refusal
from idiolect.studies import Study

_Count = Annotated[int, Field(ge=1, le=2**40)]
_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Policy(BaseModel):
    """``policy.yaml``. What is left out is not limited; code is never imported.

    Attributes:
        methods: the methods that may be trained.
        models: the networks that may be trained.
        most_rounds: rounds of one study.
        most_trainings: rounds over all methods and seeds of a study, which is how often this site's data are used; the
            stage "trained" uses them once more.
        most_bytes: of one message that this site sends.
        most_norm: the study must clip uploads to a norm of at most this.
        least_noise: the study must add noise of at least this standard deviation to uploads, after clipping.
        least_summed: uploads may leave this site only under masks, in sums over at least so many sites.
        evaluate: whether this site sends what it measures of its test and validation samples.
        version: the version of idiolect that may be installed here.
        digest: the digest of its files, as ``idiolect site --dry-run`` says it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    methods: tuple[str, ...] | None = None
    models: tuple[str, ...] | None = None
    most_rounds: _Count | None = None
    most_trainings: _Count | None = None
    most_bytes: _Count | None = None
    most_norm: _Positive | None = None
    least_noise: _Positive | None = None
    least_summed: Annotated[int, Field(ge=3, le=2**40)] | None = None
    evaluate: bool = True
    version: str | None = None
    digest: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None

    @classmethod
    def read(cls, path: Path) -> Policy:
        """The policy in a file.

        Raises:
            InputError: there is no such file, it is not a policy, or another idiolect is installed than it says.
        """
        policy = cls._of_file(path)
        if policy.version not in (None, __version__):
            raise InputError(
                f"{path} allows idiolect {policy.version}, and {__version__} is installed: install that one"
            )
        if policy.digest is not None and policy.digest != (own := digest()):
            raise InputError(
                f"{path} allows the idiolect whose digest is {policy.digest}, and that of the installed one is {own}: "
                "install that one, or look at what has changed and write the new digest into the policy"
            )
        return policy

    @classmethod
    def _of_file(cls, path: Path) -> Policy:
        try:
            return cls.model_validate(read_yaml(path) or {})
        except OSError as error:
            raise InputError(f"cannot read the policy {path}: {error.strerror}") from None
        except pydantic.ValidationError as error:
            first = error.errors()[0]
            settings = listed(cls.model_fields, 20)
            reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
            raise InputError(f"{path} is not a policy ({reason}): it has settings such as {settings}") from None
        except ValueError as error:
            raise InputError(f"{path} is not YAML ({error}): fix it") from None

    def check(self, study: Study) -> None:
        """Check a study.

        Raises:
            Refusal: the policy does not allow it.
        """
        for use in study.methods:
            if self.methods is not None and use.name not in self.methods:
                raise Refusal(f"method {use.name} is not allowed here ({listed(self.methods)} are)")
        if self.models is not None and study.model not in self.models:
            raise Refusal(f"model {study.model} is not allowed here ({listed(self.models)} are)")
        if self.most_rounds is not None and study.rounds > self.most_rounds:
            raise Refusal(f"{study.rounds} rounds are more than the {self.most_rounds} that are allowed here")
        rounds = study.rounds + ("trained" in study.protocol.stages)  # which trains once more to be measured
        trainings = rounds * len(study.methods) * len(study.seeds)
        if self.most_trainings is not None and trainings > self.most_trainings:
            raise Refusal(f"{trainings} trainings are more than the {self.most_trainings} that are allowed here")
        steps = [step.name for step in study.uploads]
        clips = [float(step.options["norm"]) for step in study.uploads if step.name == "clip"]
        if self.most_norm is not None and min(clips, default=float("inf")) > self.most_norm:
            raise Refusal(f"uploads must be clipped to a norm of at most {self.most_norm:g} here")
        noises = [float(step.options["std"]) for step in study.uploads if step.name == "noise"]
        if self.least_noise is not None:
            if max(noises, default=0.0) < self.least_noise:
                raise Refusal(f"uploads need noise of a standard deviation of {self.least_noise:g} or more here")
            if "clip" not in steps[: steps.index("noise")]:
                raise Refusal("uploads must be clipped before noise is added here")

        if self.least_summed is not None and not study.secure_aggregation:
            raise Refusal("uploads must be under masks here: the study needs secure_aggregation")

    def fits(self, size: int) -> None:
        """Check the bytes of a message that would be sent.

        Raises:
            Refusal: they are too many.
        """
        if self.most_bytes is not None and size > self.most_bytes:
            raise Refusal(f"a message of {size:,} bytes is larger than the {self.most_bytes:,} that are allowed here")
