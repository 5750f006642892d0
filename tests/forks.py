"""`--forks N`: run the collected tests in N forked processes.

Modules are imported and tests are collected once, where each worker of pytest-xdist does both for itself. Only for tests that
start no process before they run: a forked process has none of its parent's threads.
"""

import json
import os
import selectors
import signal
import struct
from collections.abc import Iterator
from itertools import groupby
from typing import BinaryIO

import pytest

_INDEX = struct.Struct("H")
_DONE = b"done"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--forks", type=int, default=0, metavar="N", help="run the collected tests in N forked processes")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    forks = session.config.getoption("forks")
    if not forks or session.config.option.collectonly or session.testsfailed:
        return None
    modules = [list(items) for _, items in groupby(session.items, key=lambda item: item.path)]
    session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # one for all, which the parent removes
    queue = _filled_queue(len(modules))
    children = [_Child.start(session, modules, queue) for _ in range(forks)]
    os.close(queue)
    try:
        _collect_reports(session, children)
    finally:
        for child in children:
            child.stop()
    return True


def _filled_queue(count: int) -> int:
    """A pipe with the index of each module. Every read takes one index; the end of the pipe is the end of the work."""
    reader, writer = os.pipe()
    os.write(writer, b"".join(_INDEX.pack(index) for index in range(count)))
    os.close(writer)
    return reader


class _Child:
    """A forked process, and the end of the pipe through which it reports: a JSON document per line."""

    def __init__(self, process: int, reports: int) -> None:
        self.process = process
        self.reports = reports
        self.is_done = False
        self._partial = b""

    @classmethod
    def start(cls, session: pytest.Session, modules: list[list[pytest.Item]], queue: int) -> "_Child":
        reader, writer = os.pipe()
        process = os.fork()
        if process == 0:
            os.close(reader)
            _run(session, modules, queue, os.fdopen(writer, "wb", buffering=0))
        os.close(writer)
        return cls(process, reader)

    def lines(self) -> list[bytes] | None:
        """Complete lines that have arrived; None at the end."""
        if not (received := os.read(self.reports, 1 << 20)):
            return None
        *lines, self._partial = (self._partial + received).split(b"\n")
        return lines

    def stop(self) -> None:
        if not self.is_done:
            os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)
        os.close(self.reports)


def _run(session: pytest.Session, modules: list[list[pytest.Item]], queue: int, reports: BinaryIO) -> None:
    """Run modules until there are no more. Never returns: the parent alone ends the session."""
    try:
        plugins = session.config.pluginmanager
        plugins.unregister(name="terminalreporter")
        plugins.register(_ReportSender(session.config, reports))
        items = _claimed(modules, queue)
        item = next(items, None)
        while item is not None:
            following = next(items, None)
            session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            item = following
        reports.write(_DONE + b"\n")
    finally:
        os._exit(0)


def _claimed(modules: list[list[pytest.Item]], queue: int) -> Iterator[pytest.Item]:
    while taken := os.read(queue, _INDEX.size):
        yield from modules[_INDEX.unpack(taken)[0]]


class _ReportSender:
    def __init__(self, config: pytest.Config, reports: BinaryIO) -> None:
        self._config = config
        self._reports = reports

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._reports.write(json.dumps(data).encode() + b"\n")


def _collect_reports(session: pytest.Session, children: list[_Child]) -> None:
    with selectors.DefaultSelector() as selector:
        for child in children:
            selector.register(child.reports, selectors.EVENT_READ, child)
        while selector.get_map():
            for key, _ in selector.select():
                lines = key.data.lines()
                if lines is None:
                    selector.unregister(key.fileobj)
                for line in lines or ():
                    _receive(session, key.data, line)
    if not all(child.is_done for child in children):
        raise session.Failed("a forked test process ended early")


def _receive(session: pytest.Session, child: _Child, line: bytes) -> None:
    if line == _DONE:
        child.is_done = True
        return
    config = session.config
    report = config.hook.pytest_report_from_serializable(config=config, data=json.loads(line))
    config.hook.pytest_runtest_logreport(report=report)
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)
