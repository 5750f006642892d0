"""The processor time of a server is that of all of its processes, and not that of the load."""

import os
import subprocess
import sys

import pytest
from benchmarks.processor_time import processor_us, tree_seconds

_BURN = """
import sys, time
while time.process_time() < 0.2:
    pass
print(flush=True)
input()
"""
_SERVER = f"""
import subprocess, sys
subprocess.run([sys.executable, "-c", {_BURN!r}], input=b"\\n", stdout=subprocess.DEVNULL)
with subprocess.Popen([sys.executable, "-c", {_BURN!r}]) as child:  # it says when it has worked, and waits
    child.wait()
"""


@pytest.mark.engine
def test_processes_below_the_root_count_and_those_that_have_ended() -> None:
    before = tree_seconds(os.getpid())
    with subprocess.Popen([sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        server.stdout.readline()
        of_server, of_all = tree_seconds(server.pid), tree_seconds(os.getpid()) - before
        server.communicate(b"\n")

    assert of_all >= of_server >= 0.38  # in ticks of 10 ms
    assert tree_seconds(server.pid) == 0


def test_without_operations_there_is_no_processor_time_of_one() -> None:
    assert processor_us(os.getpid(), 0, 0) is None
