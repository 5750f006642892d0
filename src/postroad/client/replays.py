"""`client.replays`: archived commands, or dead letters, sent again."""

from collections.abc import Callable

from postroad.api.replays import Replay
from postroad.client.calls import AsyncNamespace, Call, Poll, SyncNamespace, poll
from postroad.client.encoding import segment
from postroad.client.generated.replays import ReplaysCalls


class ReplayCalls(ReplaysCalls):
    @poll
    def wait(
        self, replay: Replay | str, timeout: float | None = None, *, on_progress: Callable[[Replay], None] | None = None
    ) -> Poll[Replay]:
        """Wait until the replay has ended, or a dry run has selected its commands. `on_progress` is called with each state.

        Raises TimeoutError, ReplayNotFound. Stopping to wait does not stop the replay.
        """
        call: Call[Replay] = Call(method="GET", path=f"/v1/replays/{segment(replay)}", response=Replay)
        return Poll(call=call, is_done=lambda one: one.has_ended, timeout=timeout, on_result=on_progress)


class Replays(ReplayCalls, SyncNamespace):
    pass


class AsyncReplays(ReplayCalls, AsyncNamespace):
    pass
