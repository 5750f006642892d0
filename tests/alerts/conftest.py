"""A node of all roles with a mail server, and a receiver of webhooks."""

from collections.abc import AsyncIterator, Iterator

import pytest

from postroad.alerts.capability import AlertsCapability
from postroad.container import Role
from postroad.runtime.embedded_server import EmbeddedServerSettings
from postroad.settings import Secret
from tests.alerts.mail_server import Mailbox, mail_server
from tests.gateway import Gateway, Tenant, gateway_settings, running_gateway
from tests.servers import Server
from tests.subscriptions.receiver import Receiver, receiving
from tests.waiting import eventually


@pytest.fixture(scope="session")
def engine_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An engine of this folder: nodes of other tests with all roles would process the events, too."""
    server = Server(EmbeddedServerSettings(tmp_path_factory.mktemp("engine")))
    try:
        yield server.start().url
    finally:
        server.stop()


@pytest.fixture(scope="session")
def mailbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mailbox]:
    with mail_server(tmp_path_factory.mktemp("mail")) as running:
        yield running


@pytest.fixture(scope="session")
async def node(engine_url: str, mailbox: Mailbox) -> AsyncIterator[Gateway]:
    settings = gateway_settings(
        engine_url,
        outbound_allow="127.0.0.0/8",
        smtp_url=Secret(mailbox.url),
        smtp_from="alerts@postroad.example",
        smtp_ca_file=mailbox.ca_file,
    )
    async with running_gateway(settings, Role.ALL) as running:
        await eventually(lambda: running.node.platform.use(AlertsCapability).processor.is_running)
        yield running


@pytest.fixture
async def tenant(node: Gateway) -> Tenant:
    return await node.tenant()


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as running:
        yield running


@pytest.fixture(autouse=True)
def _clock(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "node" in request.fixturenames:
        request.getfixturevalue("node").clock.ahead_ms = 0
        request.getfixturevalue("mailbox").refuse = ""
