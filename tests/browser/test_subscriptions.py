"""Subscriptions: what the SNS API has in addition, and those that clients read live."""

import urllib.request
from urllib.parse import urlencode

import pytest
from playwright.sync_api import expect

from tests.browser.console import Console

pytestmark = pytest.mark.browser


def sns(console: Console, action: str, **form: str) -> str:
    """A call of the SNS API; the text of its response."""
    body = urlencode({"Action": action, "Version": "2010-03-31", **form}).encode()
    headers = {"Authorization": f"Bearer {console.key}", "Content-Type": "application/x-www-form-urlencoded"}
    with urllib.request.urlopen(urllib.request.Request(console.url, body, headers), timeout=20) as response:
        text: str = response.read().decode()
        return text


def _attributes(**given: str) -> dict[str, str]:
    entries = enumerate(given.items(), 1)
    return {
        f"Attributes.entry.{n}.{part}": text for n, pair in entries for part, text in zip(("key", "value"), pair, strict=True)
    }


def test_a_subscription_of_sns_shows_its_attributes(console: Console) -> None:
    account = console.call("GET", "/v1/whoami")["accountId"]
    console.queue("mail")
    sns(console, "CreateTopic", Name="orders")
    topic, queue = f"arn:aws:sns:eu-central-1:{account}:orders", f"arn:aws:sqs:eu-central-1:{account}:mail"
    policy = '{"kind": [{"prefix": "a"}]}'
    attributes = _attributes(RawMessageDelivery="true", FilterPolicy=policy, FilterPolicyScope="MessageBody")
    sns(console, "Subscribe", TopicArn=topic, Protocol="sqs", Endpoint=queue, **attributes)
    sns(console, "Subscribe", TopicArn=topic, Protocol="https", Endpoint="https://endpoint.example/hook")
    page = console.sign_in(path="/subscriptions")
    page.get_by_role("row", name="sns sqs").get_by_role("link").first.click()
    shown = page.get_by_role("region", name="SNS")
    for name, text in (
        *(("protocol", "sqs"), ("endpoint", queue), ("confirmation", "not needed for a queue"), ("delivery", "raw")),
        *(("filter policy", policy), ("filter policy scope", "MessageBody")),
    ):
        expect(
            shown.locator("dt", has_text=name).and_(shown.get_by_text(name, exact=True)).locator("xpath=following-sibling::dd[1]")
        ).to_have_text(text)
    page.goto(f"{console.url}/subscriptions")
    page.get_by_role("row", name="sns https").get_by_role("link").first.click()
    expect(shown.get_by_text("the endpoint has not confirmed yet")).to_be_visible()
    expect(shown.get_by_text("in an envelope")).to_be_visible()
    expect(page.get_by_role("button", name="Resume (the endpoint has to confirm first)")).to_be_disabled()


def test_the_status_of_a_subscription_is_whole_in_a_narrow_window(console: Console) -> None:
    account = console.call("GET", "/v1/whoami")["accountId"]
    sns(console, "CreateTopic", Name="orders")
    topic = f"arn:aws:sns:eu-central-1:{account}:orders"
    sns(console, "Subscribe", TopicArn=topic, Protocol="https", Endpoint="https://endpoint.example/hook")
    console.page.set_viewport_size({"width": 320, "height": 900})
    page = console.sign_in(path="/subscriptions")
    status = page.get_by_text("The endpoint has not confirmed the subscription yet; nothing is delivered before.")
    expect(status).to_be_visible()
    assert status.evaluate("(element) => element.scrollHeight <= element.clientHeight")


def test_a_subscription_that_is_read_live_shows_its_readers(console: Console) -> None:
    console.call("PUT", "/v1/topics/orders", {})
    made = console.call("POST", "/v1/topics/orders/subscriptions", {"delivery_type": "sse", "name": "board"})
    stream = urllib.request.Request(
        f"{console.url}/v1/subscriptions/{made['id']}/stream", headers={"Authorization": f"Bearer {console.key}"}
    )
    with urllib.request.urlopen(stream, timeout=30) as reader:
        assert reader.readline()
        page = console.sign_in(path=f"/subscriptions/{made['id']}")
        expect(page.locator(".numbers")).to_have_text("1 live readers")
        expect(page.get_by_role("button", name="Replay… (clients read it from any sequence)")).to_be_disabled()
