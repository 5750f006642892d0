"""Limit on the bytes that wait to be stored."""

from postroad.kernel.errors import Overloaded


class WriteBufferLimit:
    """Bytes that wait to be stored in this process, over all streams, and their maximum."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.bytes = 0

    def reserve(self, size: int) -> None:
        """Raises Overloaded."""
        if self.bytes + size > self._bytes_max:
            raise Overloaded(f"{self.bytes} bytes are waiting to be stored already", retry_after=1)
        self.bytes += size

    def release(self, size: int) -> None:
        self.bytes -= size
