"""Plans a batch: which messages of which streams, in how many tasks. Pure."""

from collections.abc import Callable, Mapping

from postroad.pipeline.ingest_task import MessageRange
from spark_jetstream.api import StreamInfo
from spark_jetstream.plan import SequenceRange

_TASK_BYTES = 8 * 1024 * 1024
_TASK_MESSAGES = 5_000


def unread(infos: Mapping[str, StreamInfo], position: Callable[[str, str], int]) -> dict[str, SequenceRange]:
    """By stream, the messages that are not in the lake; without streams that have none.

    A position behind the end of the stream belongs to messages that the engine has lost: its messages are read again from the
    first one, and their events are counted once.
    """
    found = {}
    for name, info in infos.items():
        done = position(name, info.created)
        first = info.first if done > info.last else max(done + 1, info.first)
        if first <= info.last:
            found[name] = SequenceRange(first, info.last)
    return found


def plan_tasks(
    ranges: Mapping[str, SequenceRange], infos: Mapping[str, StreamInfo], messages_max: int, cores: int = 1
) -> list[list[MessageRange]]:
    """Tasks of about the same amount of data, for at most `messages_max` messages of each stream. A small batch is one task."""
    pieces: list[tuple[int, MessageRange]] = []
    chosen = {name: SequenceRange(one.first, min(one.last, one.first + messages_max - 1)) for name, one in ranges.items()}
    size = {name: max(1, infos[name].bytes // max(1, infos[name].messages)) for name in chosen}
    total = sum(len(one) * size[name] for name, one in chosen.items())
    task_bytes = max(1, min(_TASK_BYTES, max(total // max(1, cores), _TASK_BYTES // 8)))
    for name, one in chosen.items():
        per_task = max(1, min(_TASK_MESSAGES, task_bytes // size[name]))
        parts = one.split(-(-len(one) // per_task))
        created = infos[name].created
        pieces += [(len(part) * size[name], MessageRange(name, created, part.first, part.last)) for part in parts]
    return _packed(pieces, task_bytes)


def _packed(pieces: list[tuple[int, MessageRange]], task_bytes: int) -> list[list[MessageRange]]:
    tasks: list[list[MessageRange]] = []
    used = task_bytes
    for size, piece in pieces:
        if not tasks or used + size > task_bytes or len(tasks[-1]) >= _TASK_MESSAGES:
            tasks.append([])
            used = 0
        tasks[-1].append(piece)
        used += size
    return tasks
