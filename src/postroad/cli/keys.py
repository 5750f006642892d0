"""`postroad keys …` and `postroad whoami`."""

from typing import Annotated

import typer

from postroad.cli.output import AsJson, connected, show_one
from postroad.cli.rendering import show_item

keys = typer.Typer(help="API keys. Needs the scope admin. A key can give no more than it may do itself.", no_args_is_help=True)

KeyId = Annotated[str, typer.Argument(help="The key's id, as `keys list` shows it; not its text.")]


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


@keys.command("enable")
def enable_key(key_id: KeyId, as_json: AsJson = False) -> None:
    """Let a key work again."""
    with connected() as client:
        show_item(client.keys.enable(key_id), as_json)


@keys.command("disable")
def disable_key(key_id: KeyId, as_json: AsJson = False) -> None:
    """Refuse a key everywhere, until it is enabled again."""
    with connected() as client:
        show_item(client.keys.disable(key_id), as_json)
