"""Operations, shapes and errors of an AWS service, from a table that `scripts/generate_aws_models.py` makes from botocore's."""

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec


class Shape(msgspec.Struct, frozen=True):
    """A type. Members of a structure are (shape, name in the query protocol); `name` is that of list members or map keys,
    `value_name` that of map values."""

    type: str
    members: dict[str, tuple[str, str]] = {}
    required: tuple[str, ...] = ()
    member: str = ""
    key: str = ""
    value: str = ""
    name: str = ""
    value_name: str = "Value"
    flattened: bool = False
    min: int | None = None
    max: int | None = None
    enum: tuple[str, ...] = ()


class ServiceModel(msgspec.Struct, frozen=True):
    service: str
    version: str
    namespace: str
    target: str
    operations: dict[str, tuple[str | None, str | None]]
    errors: dict[str, tuple[str, int]]  # by shape: code in the query protocol, status
    shapes: dict[str, Shape]


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a service, with its input and output shapes."""

    model: ServiceModel
    name: str
    input: str | None
    output: str | None

    @property
    def label(self) -> str:
        return f"{self.model.service}:{self.name}"


@cache
def service_model(service: str) -> ServiceModel:
    text = (files("postroad.aws") / "models" / f"{service}.json").read_bytes()
    return msgspec.json.decode(text, type=ServiceModel)


@cache
def operations() -> dict[str, dict[str, Operation]]:
    """All operations by service and name."""
    models = [service_model(name) for name in ("sns", "sqs", "sts")]
    return {
        model.service: {name: Operation(model, name, given, result) for name, (given, result) in model.operations.items()}
        for model in models
    }


Values = dict[str, Any]  # of a structure, by member
