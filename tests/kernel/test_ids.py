import subprocess
import sys
import time
import uuid

import pytest

from postroad.kernel.ids import ShortIds, new_id

_FORK = """
import os
from postroad.kernel.ids import new_id
new_id()  # fills the pool
reader, writer = os.pipe()
child = os.fork()
if child == 0:
    os.write(writer, new_id().encode())
    os._exit(0)
os.waitpid(child, 0)
print(new_id(), os.read(reader, 100).decode())
"""


def test_a_new_id_is_a_uuid_of_version_7() -> None:
    for _ in range(1000):  # more than one pool of randomness
        text = new_id()
        parsed = uuid.UUID(text)
        assert str(parsed) == text
        assert (parsed.version, parsed.variant) == (7, uuid.RFC_4122)


def test_new_ids_are_unique() -> None:
    assert len({new_id() for _ in range(50_000)}) == 50_000


def test_ids_sort_by_time() -> None:
    made: list[str] = []
    for _ in range(20):
        before = time.time_ns() // 1_000_000
        made.append(new_id())
        assert before <= uuid.UUID(made[-1]).int >> 80 <= time.time_ns() // 1_000_000
        while time.time_ns() // 1_000_000 == before:
            pass
    assert made == sorted(made)


def test_every_random_bit_of_an_id_varies() -> None:
    ids = [uuid.UUID(new_id()).int for _ in range(500)]
    always_set, ever_set = ids[0], 0
    for value in ids:
        always_set &= value
        ever_set |= value
    fixed = 0xF << 76 | 0x3 << 62  # version and variant
    random_bits = ((1 << 80) - 1) & ~fixed
    assert always_set & random_bits == 0
    assert ever_set & random_bits == random_bits


@pytest.mark.engine
def test_a_forked_process_does_not_reuse_random_bytes() -> None:
    answer = subprocess.run([sys.executable, "-c", _FORK], capture_output=True, text=True, check=True, timeout=30)
    parent, child = answer.stdout.split()
    assert parent[-12:] != child[-12:]


def test_short_ids_are_unique_within_and_between_processes() -> None:
    one, other = ShortIds(), ShortIds()
    made = [maker() for _ in range(1000) for maker in (one, other)]
    assert len(set(made)) == len(made)
    assert all(text.isalnum() and len(text) <= 16 for text in made)
