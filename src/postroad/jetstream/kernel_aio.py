"""Asynchronous fsync and fdatasync: Linux's kernel AIO, which executes them in a kernel worker and signals an eventfd.

A thread would do the same, but its completion waits for the interpreter lock of a busy event loop, up to 5 ms.
"""

import asyncio
import ctypes
import errno
import os
import platform
import sys
from collections.abc import Callable, Sequence
from typing import ClassVar

_CALLS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}  # io_setup, io_destroy, io_getevents, io_submit
_RING = 64
_FSYNC, _FDSYNC = 2, 3
_RESFD = 1
NOT_SUBMITTED = -1  # instead of an errno: the kernel has no space for the rest of the operations

Operation = tuple[int, bool]  # a descriptor, and whether fdatasync is sufficient


class _Iocb(ctypes.Structure):
    _fields_: ClassVar = [
        ("data", ctypes.c_uint64),
        ("key", ctypes.c_uint32),
        ("rw_flags", ctypes.c_uint32),
        ("opcode", ctypes.c_uint16),
        ("priority", ctypes.c_int16),
        ("descriptor", ctypes.c_uint32),
        ("buffer", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("offset", ctypes.c_int64),
        ("reserved", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("eventfd", ctypes.c_uint32),
    ]


class _IoEvent(ctypes.Structure):
    _fields_: ClassVar = [
        ("data", ctypes.c_uint64),
        ("iocb", ctypes.c_uint64),
        ("result", ctypes.c_int64),
        ("result2", ctypes.c_int64),
    ]


def is_supported() -> bool:
    """True if this machine's kernel executes the calls: some sandboxes refuse them."""
    if sys.platform != "linux" or platform.machine() not in _CALLS:
        return False
    try:
        _Context().close()
    except OSError:
        return False
    return True


class _Context:
    """An AIO context and the system calls on it. Raises OSError."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._setup, self._destroy, self._getevents, self._submit = _CALLS[platform.machine()]
        self._context = ctypes.c_ulong(0)
        self._call(self._setup, ctypes.c_long(_RING), ctypes.byref(self._context))

    def _call(self, number: int, *arguments: object) -> int:
        while True:
            result: int = self._libc.syscall(ctypes.c_long(number), *arguments)
            if result >= 0:
                return result
            problem = ctypes.get_errno()
            if problem != errno.EINTR:
                raise OSError(problem, os.strerror(problem))

    def submit(self, count: int, pointers: "ctypes.Array[ctypes.c_void_p]") -> int:
        return self._call(self._submit, self._context, ctypes.c_long(count), pointers)

    def completed(self, events: "ctypes.Array[_IoEvent]") -> int:
        return self._call(self._getevents, self._context, ctypes.c_long(0), ctypes.c_long(len(events)), events, None)

    def close(self) -> None:
        self._call(self._destroy, self._context)


class KernelAio:
    """Executes one list of operations at a time. Raises OSError if the kernel does not support it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._context = _Context()
        self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._iocbs = (_Iocb * _RING)()
        self._pointers = (ctypes.c_void_p * _RING)()
        self._events = (_IoEvent * _RING)()
        for index, iocb in enumerate(self._iocbs):
            iocb.flags, iocb.eventfd = _RESFD, self._eventfd
            self._pointers[index] = ctypes.addressof(iocb)
        self._operations: Sequence[Operation] = ()
        self._submitted = self._in_flight = self._error = 0
        self._done: Callable[[int], None] = lambda _error: None
        loop.add_reader(self._eventfd, self._on_completed)

    def submit(self, operations: Sequence[Operation], done: Callable[[int], None]) -> None:
        """Begin the operations; call `done` when all have ended, with 0, the errno of one that failed, or NOT_SUBMITTED.

        Raises OSError if none could begin.
        """
        self._operations, self._done = operations, done
        self._submitted = self._error = 0
        self._submit_next()

    def _submit_next(self) -> None:
        chunk = self._operations[self._submitted : self._submitted + _RING]
        for iocb, (descriptor, is_data_sufficient) in zip(self._iocbs, chunk, strict=False):
            iocb.opcode, iocb.descriptor = _FDSYNC if is_data_sufficient else _FSYNC, descriptor
        self._in_flight = self._context.submit(len(chunk), self._pointers)  # fewer if the kernel lacks space
        self._submitted += self._in_flight

    def _on_completed(self) -> None:
        try:
            os.eventfd_read(self._eventfd)
        except BlockingIOError:
            return
        count = self._context.completed(self._events)
        for event in self._events[:count]:
            if event.result < 0:
                self._error = -event.result
        self._in_flight -= count
        if self._in_flight or not count:
            return
        if self._submitted < len(self._operations) and not self._error:
            try:
                self._submit_next()
                return
            except OSError:
                self._error = NOT_SUBMITTED
        self._done(self._error)

    def close(self) -> None:
        """Wait for the operations in progress, and release the context."""
        self._loop.remove_reader(self._eventfd)
        self._context.close()
        os.close(self._eventfd)
