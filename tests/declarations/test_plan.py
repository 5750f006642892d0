"""Plans: what is created, changed, replaced and deleted."""

from postroad.api.queues import StrictQueueSettings
from postroad.declarations.definitions import SubscriptionDefinition
from postroad.declarations.documents import parse
from postroad.declarations.kind import Existing
from postroad.declarations.plan import Server, kinds_to_read, mark, plan

FIRST, LATER = "2026-01-01T00:00:00.000Z", "2026-01-02T00:00:00.000Z"


def server(**kinds: list[Existing]) -> Server:
    return Server({kind: {one.name: one for one in found} for kind, found in kinds.items()}, {})


def queue(name: str, created: str = FIRST, **settings: object) -> Existing:
    return Existing(name, StrictQueueSettings(**settings), created)  # type: ignore[arg-type]


def texts(*args: object, prune: bool = False) -> list[str]:
    return [str(change) for change in plan(*args, prune=prune)]  # type: ignore[arg-type]


def test_differences_are_shown_and_equal_resources_are_not() -> None:
    wanted = parse({"queues": {"a": {"maxAttempts": 2}, "b": {}, "c": {}}}, "shop", "file").resources
    assert texts(server(queues=[queue("a"), queue("b")]), wanted, set()) == [
        f"change queues a: max_attempts {StrictQueueSettings().max_attempts} → 2",
        "create queues c",
    ]


def test_queues_follow_those_of_their_dead_letters() -> None:
    wanted = parse({"queues": {"a": {"deadLetterQueue": "b"}, "b": {"deadLetterQueue": "c"}, "c": {}}}, "s", "file").resources
    assert texts(server(), wanted, set()) == ["create queues c", "create queues b", "create queues a"]


def test_prune_deletes_what_the_manifest_created_and_nothing_else() -> None:
    found = server(queues=[queue("own"), queue("kept"), queue("manual"), queue("again", LATER)])
    owned = {mark("queues", one, FIRST) for one in ("own", "kept", "again", "gone")}
    wanted = parse({"queues": {"kept": {}}}, "shop", "file").resources
    assert texts(found, wanted, owned, prune=True) == ["delete queues own"]
    assert texts(found, wanted, owned) == []


def test_grants_are_deleted_before_their_route_and_alone() -> None:
    document = parse({"services": {"bot": {}}, "routes": {"bot/post": {"queue": "q", "grants": ["billing"]}}}, "shop", "file")
    existing = {
        kind: [Existing(name, one, FIRST) for name, one in resources.items()] for kind, resources in document.resources.items()
    }
    owned = {mark(kind, one.name, FIRST) for kind, found in existing.items() for one in found}
    assert texts(server(**existing), {}, owned, prune=True) == [
        "delete grants bot/post/shop/billing",
        "delete routes bot/post",
        "delete services bot",
    ]
    without_grant = parse({"services": {"bot": {}}, "routes": {"bot/post": {"queue": "q"}}}, "shop", "file").resources
    assert texts(server(**existing), without_grant, owned, prune=True) == ["delete grants bot/post/shop/billing"]


def test_another_delivery_type_replaces_the_subscription() -> None:
    before = Existing("prices/x", SubscriptionDefinition(delivery_type="queue", queue="q"), FIRST)
    wanted = parse({"subscriptions": {"prices/x": {"delivery_type": "sse"}}}, "shop", "file").resources
    assert texts(server(subscriptions=[before]), wanted, set())[0].startswith("replace subscriptions prices/x: delivery_type")


def test_only_kinds_that_matter_are_read() -> None:
    wanted = parse({"queues": {"a": {}}}, "shop", "file").resources
    assert [kind.name for kind in kinds_to_read(wanted, ())] == ["queues"]
    assert [kind.name for kind in kinds_to_read(wanted, {mark("topics", "t", FIRST)})] == ["queues", "topics"]
