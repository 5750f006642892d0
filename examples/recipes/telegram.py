"""Forwards the messages of a topic to a chat of Telegram; to a second service if Telegram does not accept one.

SECRET=… TELEGRAM_TOKEN=… TELEGRAM_CHAT=-100… FALLBACK_URL=https://hooks.slack.com/services/… PORT=9000 python telegram.py
"""

import json
import os

from forwarder import Refused, ServiceError, Unavailable, json_headers, post, serve

from postroad.webhooks import Delivery

API = os.environ.get("TELEGRAM_API", "https://api.telegram.org")
TEXT_MAX = 4096


def text_of(delivery: Delivery) -> str:
    return f"{delivery.subject}\n{delivery.body.decode(errors='replace')}"[:TEXT_MAX]


def send_to_telegram(delivery: Delivery) -> None:
    body = json.dumps({"chat_id": os.environ["TELEGRAM_CHAT"], "text": text_of(delivery)}).encode()
    try:
        post("telegram", f"{API}/bot{os.environ['TELEGRAM_TOKEN']}/sendMessage", body, json_headers(delivery))
    except ServiceError as problem:
        if not problem.is_transient:
            raise Refused(str(problem)) from None
        raise Unavailable(str(problem), _retry_after(problem)) from None


def _retry_after(problem: ServiceError) -> str | None:
    """Telegram says in the body, not in a header, how long to wait."""
    try:
        return str(json.loads(problem.body)["parameters"]["retry_after"])
    except (ValueError, KeyError, TypeError):
        return problem.retry_after


def send_to_fallback(delivery: Delivery) -> None:
    """Any service that takes `{"text": …}`: an incoming webhook of Slack or Mattermost, or one of your own that sends SMS."""
    post("fallback", os.environ["FALLBACK_URL"], json.dumps({"text": text_of(delivery)}).encode(), json_headers(delivery))


def forward(delivery: Delivery) -> None:
    """Delivered as soon as one service has it. A dead letter only if both refuse; otherwise both are tried again later."""
    try:
        send_to_telegram(delivery)
    except (Refused, Unavailable) as first:
        try:
            send_to_fallback(delivery)
        except (ServiceError, Unavailable) as second:
            reason = f"{first}; {second}"
            if isinstance(first, Refused) and isinstance(second, ServiceError) and not second.is_transient:
                raise Refused(reason) from None
            raise Unavailable(reason, getattr(first, "retry_after", None)) from None


if __name__ == "__main__":
    serve(forward)
