"""What waits to be stored, and its limit."""

from postroad.kernel.errors import Overloaded


class WriteBufferLimit:
    """How many bytes may wait to be stored in this process, over all streams."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.bytes = 0

    def take(self, size: int) -> None:
        if self.bytes + size > self._bytes_max:
            raise Overloaded(f"{self.bytes} bytes are waiting to be stored already", retry_after=1)
        self.bytes += size

    def give_back(self, size: int) -> None:
        self.bytes -= size
