"""Random operations on a queue with noisy groups, compared with the model of queues: deferral loses and repeats nothing.

Two messages of a group are its share here, and one is moved back ahead of consumers, so that most messages are deferred.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.queues import fairness, group_shares
from postroad.runtime.embedded_server import EmbeddedServerSettings
from tests.gateway import Gateway
from tests.queues.test_model import ATTEMPTS, STEPS, Engine, Player, two_gateways
from tests.tiers import long_runs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class FairPlayer(Player):
    """Like `Player`, with groups."""

    groups: tuple[str, ...] = ("a",)

    def _fields(self, count: int) -> dict[str, object]:
        group = self.groups[count % len(self.groups)]
        return super()._fields(count) | ({"groupId": group} if group else {})


async def play(
    steps: list[tuple[str, int]], groups: list[str], priorities: list[str], engine: Engine, first: Gateway, second: Gateway
) -> None:
    tenant = await first.tenant()
    queue = await tenant.queue(maxAttempts=ATTEMPTS, retryDelaysMs=[0])
    player = FairPlayer(engine, tenant, second.seen_by(tenant), queue, priorities)
    player.groups = tuple(groups)
    for step, number in steps:
        await player.play(step, number)
    await player._dead_letter_exhausted()
    assert await player._dead_ids() == player.model.dead
    for receipt, _ in player.model.leased.values():
        (await player.tenant.ack(queue, receipt)).ok()
    player.model.leased.clear()
    await player.check()


def test_a_fair_queue_behaves_like_the_model_of_a_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (fairness, group_shares):
        monkeypatch.setattr(module, "QUIET_MAX", 2)
        monkeypatch.setattr(module, "QUIET_MIN", 2)
    monkeypatch.setattr(fairness, "READY_MIN", 1)
    with ThreadPoolExecutor(1) as executor:
        executor.submit(run_examples, Engine(EmbeddedServerSettings(tmp_path))).result()


def run_examples(engine: Engine) -> None:
    with asyncio.Runner() as runner:
        gateways = two_gateways(engine.server.url)
        first, second = runner.run(gateways.__aenter__())

        @long_runs(5)
        @given(
            STEPS,
            st.lists(st.sampled_from(["a", "a", "a", "b", ""]), min_size=1, max_size=5),
            st.sampled_from([["normal"], ["normal"], ["normal", "high", "low"]]),
        )
        def run_example(steps: list[tuple[str, int]], groups: list[str], priorities: list[str]) -> None:
            runner.run(play(steps, groups, priorities, engine, first, second))

        try:
            run_example()
        finally:
            runner.run(gateways.__aexit__(None, None, None))
            engine.server.stop()
