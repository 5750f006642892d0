"""The topology of the installation."""

from postroad.container import Role
from postroad.jetstream.cluster_info import Peer, ServerInfo, StreamCluster
from postroad.live_state.topology import topology_of
from tests.gateway import Gateway, Tenant, gateway_settings, running_gateway
from tests.servers import Server
from tests.waiting import eventually

SERVERS = [ServerInfo(name, ("geo:eu",), jetstream=True) for name in ("a", "b", "c")]


def test_a_server_is_critical_for_streams_that_would_lose_their_quorum() -> None:
    whole = StreamCluster("a", (Peer("b", current=True), Peer("c", current=True)))
    degraded = StreamCluster("a", (Peer("b", current=True), Peer("c", offline=True, lag=7)))
    lost = StreamCluster("", (Peer("a", current=True), Peer("b", offline=True), Peer("c", offline=True)))
    found = topology_of(SERVERS, {"Q_t__whole": whole, "Q_t__bad": degraded, "AUDIT": whole, "D_t": lost}, {}, (7, 70), [])
    servers = {one.name: one for one in found.servers}
    assert {name: one.is_up for name, one in servers.items()} == {"a": True, "b": True, "c": True}
    assert (servers["a"].leaders, servers["a"].replicas, servers["a"].critical_streams) == (3, 4, ("Q_t__bad",))
    assert (servers["b"].critical, servers["c"].critical) == (1, 0)
    assert [one.name for one in found.streams] == ["D_t", "Q_t__bad", "AUDIT"], "the healthy one of a tenant is only counted"
    assert (found.streams_total, found.without_leader, found.without_quorum, found.storage_bytes) == (4, 1, 1, 7)


def test_a_server_that_does_not_answer_counts_as_offline_before_the_leaders_say_so() -> None:
    whole = StreamCluster("a", (Peer("b", current=True), Peer("c", current=True)))
    found = topology_of(SERVERS[:2], {"Q_t__whole": whole}, {}, (0, 0), [])
    assert [(one.name, one.is_up, one.critical) for one in found.servers] == [("a", True, 1), ("b", True, 1), ("c", False, 0)]
    assert [one.is_offline for one in found.streams[0].replicas] == [False, False, True] and found.streams[0].has_quorum


def test_a_single_server_has_all_streams() -> None:
    found = topology_of(SERVERS[:1], {"AUDIT": StreamCluster()}, {}, (0, 0), [])
    assert found.streams[0].has_quorum and found.streams[0].replicas[0].server == "a"
    assert found.servers[0].critical == 1


async def test_processes_and_servers_of_an_installation_are_shown(own_server: Server) -> None:
    async with running_gateway(gateway_settings(own_server.url, sample_seconds=1), Role.ALL) as gateway:

        async def has_processes() -> bool:
            return bool((await gateway.admin.get("/api/control/topology")).ok()["processes"])

        await eventually(has_processes, 20)
        found = (await gateway.admin.get("/api/control/topology")).ok()
        assert found["withoutLeader"] == 0 and found["streamsTotal"] > 5
        assert "AUDIT" in {one["name"] for one in found["streams"]} and found["servers"][0]["isUp"]


async def test_only_platform_keys_see_the_topology(gateway: Gateway, tenant: Tenant) -> None:
    (await tenant.client.get("/api/control/topology")).problem(403, "forbidden")
