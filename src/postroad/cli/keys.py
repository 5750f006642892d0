"""`postroad whoami`, `postroad keys enable`, `disable` and `aws`."""

from typing import Annotated

import typer

from postroad.cli.output import AsJson, connected, print_json, show_one
from postroad.cli.profiles import GlobalOptions, global_options, resolve_target
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
            services=me.allowed_services,
            expires=me.expires_at or "never",
            aws_account=me.account_id,
        )


@keys.command("aws")
def create_aws_key(
    key_id: KeyId,
    grace_seconds: Annotated[int, typer.Option(help="Seconds that a previous AWS secret of the key stays valid.")] = 86_400,
    profile: Annotated[str, typer.Option(help="Print a profile of this name for ~/.aws/config instead of variables.")] = "",
    region: Annotated[str, typer.Option(help="Region in the output. Postroad accepts any.")] = "us-east-1",
    as_json: AsJson = False,
) -> None:
    """Create AWS credentials for a key, and print them for AWS SDKs. The secret is shown once."""
    with connected() as client:
        issued = client.keys.create_aws_key(key_id, grace_seconds=grace_seconds)
        values = {
            "aws_access_key_id": issued.access_key_id,
            "aws_secret_access_key": issued.secret_access_key,
            "region": region,
            "endpoint_url": resolve_target(global_options.get(GlobalOptions())).url,
        }
        if as_json:
            print_json(issued)
        elif profile:
            typer.echo("\n".join([f"[profile {profile}]", *(f"{name} = {value}" for name, value in values.items())]))
        else:
            names = {"region": "AWS_DEFAULT_REGION", "endpoint_url": "AWS_ENDPOINT_URL"}
            for name, value in values.items():
                typer.echo(f"export {names.get(name, name.upper())}={value}")


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
