"""Messages of a contract: single ones, and rows of a Spark table (`subject`, `message_id`, `data`) as the JetStream sink expects
them."""

from typing import Any, NamedTuple

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from postroad.contracts.contract import Contract, template_parts


class OutgoingMessage(NamedTuple):
    subject: str
    message_id: str
    data: bytes


def contract_message(contract: Contract[Any], body: msgspec.Struct, **fields: object) -> OutgoingMessage:
    """`fields` are those of the subject and the message id."""
    subject = contract.subject_of(**{name: str(value) for name, value in fields.items()})
    return OutgoingMessage(subject, contract.message_id_of(**fields), msgspec.json.encode(body))


def contract_messages(frame: DataFrame, contract: Contract[Any], data: Column, **fields: Column) -> DataFrame:
    """A message for each row. `fields` are those of the subject and the message id."""
    return frame.select(
        _filled(contract.subject, fields).alias("subject"),
        _filled(contract.message_id, fields).alias("message_id"),
        data.alias("data"),
    )


def _filled(template: str, fields: dict[str, Column]) -> Column:
    return F.concat(*(one for literal, name in template_parts(template) for one in _part(literal, name, fields)))


def _part(literal: str, name: str | None, fields: dict[str, Column]) -> list[Column]:
    return [*([F.lit(literal)] if literal else []), *([fields[name].cast("string")] if name else [])]
