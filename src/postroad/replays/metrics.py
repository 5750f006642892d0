"""Metrics of replays."""

from postroad.kernel.buffered_metrics import Counter

replays = Counter("postroad_replays_total", "Replays that ended, by state.", ["state"])
commands = Counter("postroad_replay_commands_total", "Commands that replays sent, by outcome.", ["outcome"])
throttled = Counter("postroad_replay_throttled_total", "Times that a replay waited for a limit.")
