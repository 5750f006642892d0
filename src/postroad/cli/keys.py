"""`postroad keys …` and `postroad whoami`."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from postroad.cli.output import AsJson, Wide, Yes, confirm, connected, show, show_once, show_one, words
from postroad.cli.times import duration, from_now
from postroad.kernel.identity import Scope

if TYPE_CHECKING:
    from postroad.client import Key

keys = typer.Typer(help="API keys. Needs the scope admin. A key can give no more than it may do itself.", no_args_is_help=True)

KeyId = Annotated[str, typer.Argument(help="The key's id, as `keys list` shows it; not its text.")]
Scopes = Annotated[list[Scope] | None, typer.Option("--scope", help="What it allows; may be repeated. All if left out.")]
Queues = Annotated[list[str] | None, typer.Option("--queue", help="Only these queues: a name, `*` for any run of characters.")]
Topics = Annotated[list[str] | None, typer.Option("--topic", help="Only these topics.")]
Streams = Annotated[list[str] | None, typer.Option("--stream", help="Only these streams.")]


def _row(key: "Key") -> list[object]:
    enabled = "yes" if key.enabled else "no"
    return [key.id, key.name, words(key.scopes), enabled, key.expires_at or "never", key.last_used_at or "", key.created_at]


_HEAD = ("id", "name", "scopes", "enabled", "expires", "last used", "created")


def _show(key: "Key", as_json: bool) -> None:
    show_one(
        key,
        as_json,
        id=key.id,
        name=key.name,
        tenant=key.tenant or "none: a platform key",
        scopes=key.scopes,
        queues=key.allowed_queues,
        topics=key.allowed_topics,
        streams=key.allowed_streams,
        enabled=key.enabled,
        expires=key.expires_at or "never",
        last_used=key.last_used_at or "never",
        made_by=key.created_by,
        created=key.created_at,
        updated=key.updated_at,
        text_before_good_until=key.rotated_until,
    )


def whoami(as_json: AsJson = False) -> None:
    """Whose key this is, and what it allows."""
    with connected() as client:
        me = client.keys.whoami()
        show_one(
            me,
            as_json,
            tenant=me.tenant,
            platform=me.platform,
            credential=me.credential,
            key=f"{me.key_id} {me.key_name}".strip(),
            subject=me.subject,
            scopes=me.scopes,
            queues=me.allowed_queues,
            topics=me.allowed_topics,
            streams=me.allowed_streams,
            expires=me.expires_at or "never",
        )


@keys.command("list")
def list_keys(
    platform: Annotated[bool, typer.Option("--platform", help="The platform's keys instead of the tenant's.")] = False,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """All keys, without their texts."""
    with connected() as client:
        show(list(client.keys.list(platform=platform)), as_json, _HEAD, _row, wide=wide)


@keys.command("show")
def show_key(key_id: KeyId, as_json: AsJson = False) -> None:
    """A key, without its text."""
    with connected() as client:
        _show(client.keys.get(key_id), as_json)


@keys.command("create")
def create_key(
    name: Annotated[str, typer.Argument(help="For people: who or what uses it.")],
    scope: Scopes = None,
    queue: Queues = None,
    topic: Topics = None,
    stream: Streams = None,
    expires: Annotated[str | None, typer.Option(help="In `30d`, or at `2027-01-31T12:00:00Z`; never if left out.")] = None,
    platform: Annotated[bool, typer.Option("--platform", help="A platform key; takes one.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make a key. Its text is printed once, alone on standard output."""
    with connected() as client:
        made = client.keys.create(
            name,
            scopes=scope,
            allowed_queues=queue,
            allowed_topics=topic,
            allowed_streams=stream,
            expires_at=from_now(expires) if expires else None,
            platform=platform,
        )
        record = made.record
        show_once(made, as_json, made.key, f"made the key {record.id} {record.name!r} with {words(record.scopes)}")


@keys.command("update")
def update_key(
    key_id: KeyId,
    name: Annotated[str | None, typer.Option(help="For people.")] = None,
    scope: Scopes = None,
    queue: Queues = None,
    topic: Topics = None,
    stream: Streams = None,
    expires: Annotated[str | None, typer.Option(help="In `30d`, at `2027-01-31T12:00:00Z`, or `never`.")] = None,
    as_json: AsJson = False,
) -> None:
    """Change what is given; the rest stays. It counts everywhere in under a second."""
    changes: dict[str, Any] = {"name": name, "scopes": scope}
    changes |= {"allowed_queues": queue, "allowed_topics": topic, "allowed_streams": stream}
    if expires is not None:
        changes["expires_at"] = None if expires == "never" else from_now(expires)
    with connected() as client:
        _show(client.keys.update(key_id, **changes), as_json)


@keys.command("enable")
def enable_key(key_id: KeyId, as_json: AsJson = False) -> None:
    """Let a key work again."""
    with connected() as client:
        _show(client.keys.enable(key_id), as_json)


@keys.command("disable")
def disable_key(key_id: KeyId, as_json: AsJson = False) -> None:
    """Refuse a key everywhere, until it is enabled again."""
    with connected() as client:
        _show(client.keys.disable(key_id), as_json)


@keys.command("rotate")
def rotate_key(
    key_id: KeyId,
    grace: Annotated[str, typer.Option(help="How long the text before stays good: `12h`, `0s`.")] = "24h",
    as_json: AsJson = False,
) -> None:
    """Give a key a new text, which is printed once; its id, scopes and history stay."""
    with connected() as client:
        made = client.keys.rotate(key_id, grace_seconds=duration(grace))
        until = made.record.rotated_until
        before = f"the text before is good until {until}" if until else "the text before is no longer good"
        show_once(made, as_json, made.key, f"rotated the key {made.record.id} {made.record.name!r}; {before}")


@keys.command("delete")
def delete_key(key_id: KeyId, yes: Yes = False) -> None:
    """Delete a key."""
    with connected() as client:
        found = client.keys.get(key_id)
        confirm(f"Delete the key {found.id} {found.name!r}?", yes)
        client.keys.delete(key_id)
        typer.echo(f"deleted the key {found.id} {found.name!r}")
