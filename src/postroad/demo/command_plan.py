"""The plan of the demo's commands: which service sends what when, determined by the seed. Pure."""

from dataclasses import dataclass

from postroad.demo.command_scenarios import SenderScenario
from postroad.demo.plan import seeded_random
from postroad.demo.scenarios import RATE

_REPEAT_SECONDS = (0.05, 0.5)  # between the first and the second time that a command is sent
_TEXTS = ("your order has left", "the coach is late", "three letters wait", "payment received", "the road is closed")


@dataclass(frozen=True, slots=True)
class PlannedCommand:
    """A command to send `at`. A repetition has the number of the first one. `behind_seconds` is that of its sender's clock."""

    at: float
    number: int
    text: str
    behind_seconds: float


def plan_commands(seed: int, sender: SenderScenario, seconds: float, rate: float) -> list[PlannedCommand]:
    """In order of their time."""
    random = seeded_random(seed, sender.tenant, "service", sender.service)
    planned: list[PlannedCommand] = []
    for phase in sender.phases:
        length = (phase.ends - phase.begins) * seconds
        count = max(phase.count_min, round(phase.per_second * rate / RATE * length))
        for at in sorted(phase.begins * seconds + random.random() * length for _ in range(count)):
            behind = sender.behind_seconds * at / seconds
            first = PlannedCommand(at, len(planned), random.choice(_TEXTS), behind)
            planned.append(first)
            if sender.is_repeated:
                again = min(at + random.uniform(*_REPEAT_SECONDS), max(at, seconds - 0.001))
                planned.append(PlannedCommand(again, first.number, first.text, behind))
    return sorted(planned, key=lambda one: one.at)
