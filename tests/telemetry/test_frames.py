import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.commands.events import CommandArchived, CommandFailed
from postroad.jetstream import stream_reader
from postroad.jetstream.management import stream_info
from postroad.kernel.clock import now_ms
from postroad.kernel.event import Event, event_name
from postroad.registry import event_types
from postroad.settings import Settings
from postroad.telemetry.capability import TelemetryCapability
from postroad.telemetry.frames import (
    STREAMS,
    encode_event,
    frame_headers,
    frame_streams,
    frame_subject,
    is_archived,
    pack,
    unpack,
    unpack_archived,
)
from postroad.telemetry.outbox import Outbox
from tests.gateway import Gateway, Tenant
from tests.telemetry.samples import event, sample

_LINES = st.lists(st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2).map(msgspec.json.encode), max_size=5)


@given(_LINES)
def test_a_packed_frame_is_unpacked_unchanged(lines: list[bytes]) -> None:
    assert list(unpack(pack(lines))) == lines


def test_a_frame_is_json_lines() -> None:
    assert pack([b'{"a":1}', b'{"b":2}']) == b'{"a":1}\n{"b":2}'
    assert list(unpack(b'{"a":1}\n{"b":2}\n')) == [b'{"a":1}', b'{"b":2}'], "an end of line at the end is no event"


def test_archived_lines_are_no_events() -> None:
    event, other = b'{"event":"snavio.command.failed"}', b'{"event":"job.queued"}'
    command, message = b'{"event":"command.archived","x":1}', b'{"event":"message.archived"}'
    frame = pack([event, command, other, message, event])
    assert list(unpack(frame)) == [event, other, event]
    assert list(unpack_archived(frame)) == [(event, command), (other, message), (event, None)]
    assert [is_archived(line) for line in (event, command, message)] == [False, True, True]


@pytest.mark.parametrize("kind", [kind for kind in event_types() if kind.is_attached], ids=event_name)
def test_an_attached_event_is_skipped_by_its_first_bytes(kind: type[Event]) -> None:
    assert is_archived(encode_event(sample(kind)))


async def test_an_event_and_its_archived_line_are_in_one_frame(gateway: Gateway, tenant: Tenant) -> None:
    connection, line = gateway.node.platform.connection, "x" * 200_000
    outbox = Outbox(gateway.node.platform.committers, now_ms)
    pairs = [(_failed(tenant.id, str(n)), _archived(tenant.id, str(n), line)) for n in range(10)]
    await asyncio.gather(*(outbox.commit(None, *pair) for pair in pairs))
    page = await stream_reader.read(connection, "COMMANDS", f"command.{tenant.id}", 1, 100)
    assert len(page.entries) > 1, "frames are split by bytes"
    found = [pair for entry in page.entries for pair in unpack_archived(entry.payload)]
    ids = [
        (msgspec.json.decode(event)["command_id"], msgspec.json.decode(other or b"{}")["command_id"]) for event, other in found
    ]
    assert ids == [(str(n), str(n)) for n in range(10)]
    assert sum(int(entry.headers["Postroad-Events"]) for entry in page.entries) == 10, "archived lines are not counted"


def _failed(tenant: str, command: str) -> CommandFailed:
    return CommandFailed(
        tenant=tenant, source=f"{tenant}/a", command_id=command, target=f"{tenant}/b", command_name="c", reason="acl-deny"
    )


def _archived(tenant: str, command: str, payload: str) -> CommandArchived:
    return CommandArchived(tenant=tenant, source=f"{tenant}/a", command_id=command, payload=payload, outcome="failed")


def test_a_frame_has_its_version_and_event_count() -> None:
    assert frame_headers(12) == "Postroad-Frame: 1\r\nPostroad-Events: 12\r\n"


def test_each_stream_has_a_subject_per_tenant() -> None:
    assert frame_subject("JOBS", "acme") == "job.acme"
    assert frame_subject("TELEMETRY", "_platform") == "telemetry._platform"


async def test_the_streams_have_the_expected_configuration(gateway: Gateway) -> None:
    assert [spec.name for spec in frame_streams(1)] == list(STREAMS)
    for spec in frame_streams(1):
        info = await stream_info(gateway.node.platform.connection, spec.name)
        assert info is not None
        assert info.config["subjects"] == list(spec.subjects)
        assert info.config["republish"]["dest"].startswith("live.")
        assert info.config["max_age"] == 14 * 86_400 * 10**9


def test_the_streams_have_a_share_of_a_store_whose_size_is_known() -> None:
    def sizes(settings: Settings) -> list[object]:
        return [spec.options["max_bytes"] for spec in TelemetryCapability.streams(settings)]

    assert sizes(Settings.of()) == [-1, -1, -1]
    assert sizes(Settings.of(store_bytes_max=1600)) == [200, 100, 200]
    assert sizes(Settings.of(store_bytes_max=4800, replicas=3)) == [200, 100, 200]


async def test_a_stored_frame_has_its_headers_and_its_tenants_subject(gateway: Gateway, tenant: Tenant) -> None:
    await Outbox(gateway.node.platform.committers, now_ms).commit(None, event(tenant.id), event(tenant.id))
    entry = await stream_reader.last(gateway.node.platform.connection, "TELEMETRY", f"telemetry.{tenant.id}")
    assert entry is not None
    assert (entry.headers["Postroad-Frame"], entry.headers["Postroad-Events"]) == ("1", "2")
    assert len(list(unpack(entry.payload))) == 2
