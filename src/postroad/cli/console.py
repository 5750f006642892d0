"""`postroad console`: a sign-in link for the web console."""

import webbrowser
from typing import Annotated

import typer

from postroad.cli.output import AsJson, connected, print_json


def console(
    should_open: Annotated[bool, typer.Option("--open", help="Open the link in the browser instead of printing it.")] = False,
    expires_in: Annotated[int, typer.Option(help="Seconds until the link expires.")] = 600,
    as_json: AsJson = False,
) -> None:
    """Print a link that opens the web console signed in as your key, once."""
    with connected() as client:
        link = client.web_sessions.create_link(expires_in_seconds=expires_in)
        if as_json:
            print_json(link)
        elif not (should_open and webbrowser.open(link.url)):
            typer.echo(link.url)
