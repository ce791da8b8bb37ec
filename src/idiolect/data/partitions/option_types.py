"""Types of options that several partitions have."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

Fraction = Annotated[float, Field(gt=0, lt=1)]
Size = Annotated[int, Field(ge=1, le=2**40)]
Least = Annotated[int, Field(ge=2, le=2**40)]
