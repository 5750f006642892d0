import msgspec
from hypothesis import given
from hypothesis import strategies as st

from postroad.jetstream import stream_reader
from postroad.jetstream.management import stream_info
from postroad.kernel.clock import now_ms
from postroad.settings import Settings
from postroad.telemetry.capability import TelemetryCapability
from postroad.telemetry.frames import STREAMS, frame_headers, frame_streams, frame_subject, pack, unpack
from postroad.telemetry.outbox import Outbox
from tests.gateway import Gateway, Tenant
from tests.telemetry.samples import event

_LINES = st.lists(st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2).map(msgspec.json.encode), max_size=5)


@given(_LINES)
def test_a_packed_frame_is_unpacked_unchanged(lines: list[bytes]) -> None:
    assert list(unpack(pack(lines))) == lines


def test_a_frame_is_json_lines() -> None:
    assert pack([b'{"a":1}', b'{"b":2}']) == b'{"a":1}\n{"b":2}'
    assert list(unpack(b'{"a":1}\n{"b":2}\n')) == [b'{"a":1}', b'{"b":2}'], "an end of line at the end is no event"


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
    assert sizes(Settings.of(store_bytes_max=1600)) == [200, 100, 100]
    assert sizes(Settings.of(store_bytes_max=4800, replicas=3)) == [200, 100, 100]


async def test_a_stored_frame_has_its_headers_and_its_tenants_subject(gateway: Gateway, tenant: Tenant) -> None:
    await Outbox(gateway.node.platform.committers, now_ms).commit(None, event(tenant.id), event(tenant.id))
    entry = await stream_reader.last(gateway.node.platform.connection, "TELEMETRY", f"telemetry.{tenant.id}")
    assert entry is not None
    assert (entry.headers["Postroad-Frame"], entry.headers["Postroad-Events"]) == ("1", "2")
    assert len(list(unpack(entry.payload))) == 2
