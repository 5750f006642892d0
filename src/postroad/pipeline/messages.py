"""Messages of a contract as rows of a Spark table: `subject`, `message_id` and `data`, as the JetStream sink expects them."""

from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from postroad.contracts.contract import Contract, template_parts


def contract_messages(frame: DataFrame, contract: Contract[Any], data: Column, **fields: Column) -> DataFrame:
    """A message for each row. `fields` are those of the subject and the message id."""
    return frame.select(
        _filled(contract.subject, fields).alias("subject"),
        _filled(contract.message_id, fields).alias("message_id"),
        data.alias("data"),
    )


def body_json(contract: Contract[Any], **fields: Column) -> Column:
    """The body as JSON, without null fields. Raises TypeError if the names are not those of the contract's JSON."""
    names = contract.body.__struct_encode_fields__
    if set(names) != set(fields):
        raise TypeError(f"{contract.body.__name__} has the fields {names}, not {tuple(fields)}")
    return F.to_json(F.struct(*(fields[name].alias(name) for name in names)))


def _filled(template: str, fields: dict[str, Column]) -> Column:
    return F.concat(*(one for literal, name in template_parts(template) for one in _part(literal, name, fields)))


def _part(literal: str, name: str | None, fields: dict[str, Column]) -> list[Column]:
    return [*([F.lit(literal)] if literal else []), *([fields[name].cast("string")] if name else [])]
