"""Forwards the messages of a topic to a channel of Slack, by an incoming webhook.

SECRET=… SLACK_WEBHOOK_URL=https://hooks.slack.com/services/… PORT=9000 python slack.py
"""

import json
import os

from forwarder import json_headers, post, serve

from postroad.webhooks import Delivery

TEXT_MAX = 3000  # Slack cuts longer texts


def text_of(delivery: Delivery) -> str:
    """The subject in bold, and the body. Slack reads `&`, `<` and `>` as markup, so they are escaped."""
    body = delivery.body.decode(errors="replace")[:TEXT_MAX]
    escaped = body.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return f"*{delivery.subject}*\n{escaped}"


def forward(delivery: Delivery) -> None:
    body = json.dumps({"text": text_of(delivery)}).encode()
    post("slack", os.environ["SLACK_WEBHOOK_URL"], body, json_headers(delivery))


if __name__ == "__main__":
    serve(forward)
