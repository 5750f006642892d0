"""Stream, subject, message id and body of one kind of message."""

from dataclasses import dataclass
from string import Formatter
from typing import Generic, TypeVar

import msgspec

VERSION = 1

Body = TypeVar("Body", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Contract(Generic[Body]):
    """`subject` and `message_id` are templates such as `cleanup.{tenant}`. `body` is the JSON object of the message."""

    stream: str
    subject: str
    message_id: str
    body: type[Body]

    @property
    def prefix(self) -> str:
        """The first token of all subjects."""
        return self.subject.split(".", 1)[0]

    @property
    def subjects(self) -> str:
        """The pattern of all subjects."""
        return self.subjects_of()

    def subjects_of(self, *leading: str) -> str:
        """The pattern of the subjects whose first fields have these values: `insight.acme.>`."""
        return ".".join((self.prefix, *leading, ">"))

    def subject_of(self, **fields: str) -> str:
        return self.subject.format(**fields)

    def message_id_of(self, **fields: object) -> str:
        return self.message_id.format(**fields)


def template_parts(template: str) -> list[tuple[str, str | None]]:
    """Literal text and the name of the field that follows it, None at the end."""
    return [(literal, name) for literal, name, _, _ in Formatter().parse(template)]
