import functools
import inspect
import operator
import re

import msgspec
import pytest

from postroad.kernel.errors import InvalidParameter
from postroad.kernel.event import PLATFORM, Event, event_name
from postroad.kernel.names import tenant_id
from postroad.registry import event_types
from postroad.telemetry.frames import STREAMS, encode_event
from tests.looping import for_each
from tests.telemetry.samples import sample

each_type = for_each(event_types(), lambda kind: kind.__name__)


def all_subclasses(of: type[Event]) -> set[type[Event]]:
    return {
        deep for kind in of.__subclasses__() for deep in {kind, *all_subclasses(kind)} if deep.__module__.startswith("postroad.")
    }


def test_the_registry_has_every_event_type() -> None:
    concrete = {kind for kind in all_subclasses(Event) if not kind.__subclasses__()}
    assert concrete == set(event_types())


def test_no_two_types_share_a_name() -> None:
    names = [event_name(kind) for kind in event_types()]
    assert len(set(names)) == len(names)


@each_type
def test_a_type_has_a_name_and_a_description(kind: type[Event]) -> None:
    assert re.fullmatch(r"[a-z]+(\.[a-z]+([_-][a-z]+)*)+", event_name(kind))
    assert inspect.cleandoc(vars(kind)["__doc__"]).endswith(".")
    assert kind.stream in STREAMS


@each_type
def test_a_type_has_a_version_and_the_fields_of_every_event(kind: type[Event]) -> None:
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    assert isinstance(fields["version"].default, int) and fields["version"].default >= 1
    assert {"event_id", "timestamp", "tenant"} <= fields.keys()
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", name) for name in fields)


@each_type
def test_an_encoded_event_has_its_type_first(kind: type[Event]) -> None:
    sent = sample(kind)
    line = encode_event(sent)
    assert b"\n" not in line
    read = msgspec.json.decode(line)
    assert next(iter(read)) == "event"
    assert read["event"] == event_name(kind)
    assert (read["event_id"], read["timestamp"], read["tenant"], read["version"]) == ("text", "text", "text", 1)
    assert set(read) == {"event", *(field.encode_name for field in msgspec.structs.fields(kind))}


@each_type
def test_an_event_can_be_read_back_by_its_name(kind: type[Event]) -> None:
    sent = sample(kind)
    any_event = functools.reduce(operator.or_, event_types())
    assert msgspec.json.decode(encode_event(sent), type=any_event) == sent


@each_type
def test_an_event_with_an_unknown_field_can_be_read(kind: type[Event]) -> None:
    line = encode_event(sample(kind))[:-1] + b',"added_later":1}'
    assert msgspec.json.decode(line, type=kind) == sample(kind)


def test_the_platform_id_is_not_a_tenant_id() -> None:
    with pytest.raises(InvalidParameter):
        tenant_id(PLATFORM)
