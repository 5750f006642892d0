"""Which messages somebody looks for. Pure.

Most messages are ruled out by a look at their bytes, before anything is decoded: that is what makes a search of many cheap.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from postroad.queues.rules import StoredMessage

Text = Annotated[str, Meta(min_length=1, max_length=256)]
ReasonText = Annotated[str, Meta(min_length=1, max_length=1000)]
FieldText = Annotated[str, Meta(min_length=2, max_length=256, pattern="^[^=]+=")]


class MessageFilter(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """All that is given must hold."""

    search: Annotated[Text | None, Meta(description="A text that the payload, as it is stored, contains.")] = None
    header: Annotated[Text | None, Meta(description="`name`, or `name=value`.")] = None
    field: Annotated[FieldText | None, Meta(description="`path.to.field=value` in the payload; the value is JSON or a text.")] = (
        None
    )
    message_id: Text | None = None
    job_id: Text | None = None
    correlation_id: Text | None = None
    reason: Annotated[ReasonText | None, Meta(description="Of dead letters: exactly this reason.")] = None

    @property
    def is_empty(self) -> bool:
        return all(value is None for value in msgspec.structs.asdict(self).values())


class CompiledFilter:
    """A filter, made ready to look at many messages."""

    def __init__(self, wanted: MessageFilter) -> None:
        self._wanted = wanted
        self._name, self._mark, self._value = (wanted.header or "").partition("=")
        path, _, value = (wanted.field or "").partition("=")
        self._path, self._field_values = path.split("."), _values(value)
        texts = (wanted.message_id, wanted.job_id)
        self._raw = [text.encode() for text in texts if text is not None]
        if wanted.search is not None and wanted.search.isascii() and not set(wanted.search) & set('"\\'):
            self._raw.append(wanted.search.encode())

    def may_take(self, raw: bytes) -> bool:
        """False if the stored bytes alone say no."""
        return all(text in raw for text in self._raw)

    def takes(self, message: StoredMessage) -> bool:
        wanted = self._wanted
        return (
            (wanted.message_id is None or message.id == wanted.message_id)
            and (wanted.job_id is None or message.job == wanted.job_id)
            and (wanted.correlation_id is None or message.corr == wanted.correlation_id)
            and (wanted.header is None or self._has_header(message))
            and (wanted.search is None or wanted.search in bytes(message.payload).decode("utf-8", "replace"))
            and (wanted.field is None or self._has_field(message))
        )

    def takes_reason(self, reason: str) -> bool:
        return self._wanted.reason is None or reason == self._wanted.reason

    def _has_header(self, message: StoredMessage) -> bool:
        value = message.headers.get(self._name)
        return value is not None and (not self._mark or value == self._value)

    def _has_field(self, message: StoredMessage) -> bool:
        try:
            found: Any = msgspec.json.decode(message.payload)
        except msgspec.DecodeError:
            return False
        for name in self._path:
            if isinstance(found, dict) and name in found:
                found = found[name]
            elif isinstance(found, list) and name.isdigit() and int(name) < len(found):
                found = found[int(name)]
            else:
                return False
        return any(found == value and type(found) is type(value) for value in self._field_values)


def _values(text: str) -> list[Any]:
    """`42` is the number and the text: who types it into a URL means either."""
    try:
        return [text, msgspec.json.decode(text.encode())]
    except msgspec.DecodeError:
        return [text]
