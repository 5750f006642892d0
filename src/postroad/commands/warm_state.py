"""What a worker knows by itself about the commands that it dispatched: tokens, fairness, ids. Pure, in memory."""

from postroad.commands.fairness import FairnessCounters
from postroad.commands.seen_commands import SeenCommands
from postroad.commands.token_blocks import TokenBlocks


class WarmState:
    __slots__ = ("fairness", "seen", "tokens")

    def __init__(self) -> None:
        self.tokens, self.fairness, self.seen = TokenBlocks(), FairnessCounters(), SeenCommands()
