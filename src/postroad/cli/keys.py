"""`postroad whoami`, `postroad keys enable` and `disable`."""

from typing import Annotated

import typer

from postroad.cli.output import AsJson, connected, show_one
from postroad.cli.rendering import show_item

keys = typer.Typer(
    help="API keys. Needs the scope admin. A key grants no resources that it may not use itself.", no_args_is_help=True
)

KeyId = Annotated[str, typer.Argument(help="Key id, as `keys list` shows it; not the text of the key.")]


def whoami(as_json: AsJson = False) -> None:
    """Show the tenant, scopes and restrictions of the credential."""
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
            buckets=me.allowed_buckets,
            streams=me.allowed_streams,
            expires=me.expires_at or "never",
        )


@keys.command("enable")
def enable_key(key_id: KeyId, as_json: AsJson = False) -> None:
    """Enable a key, so that it is accepted again."""
    with connected() as client:
        show_item(client.keys.enable(key_id), as_json)


@keys.command("disable")
def disable_key(key_id: KeyId, as_json: AsJson = False) -> None:
    """Disable a key: it is refused until it is enabled again."""
    with connected() as client:
        show_item(client.keys.disable(key_id), as_json)
