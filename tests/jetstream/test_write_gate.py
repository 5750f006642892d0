"""Writes are held during maintenance, except those of living processes about themselves."""

import pytest

from postroad.jetstream.write_gate import WriteGate
from postroad.kernel.errors import EngineUnavailable, Maintenance


def test_a_held_write_is_refused_with_the_time_to_wait() -> None:
    gate = WriteGate()
    gate.admit("Q_a__b")
    gate.hold("a backup", 2.0)
    with pytest.raises(Maintenance, match="a backup") as refused:
        gate.admit("Q_a__b")
    assert refused.value.retry_after == 2.0
    assert isinstance(refused.value, EngineUnavailable), "callers handle it as an engine that does not answer"
    assert gate.admitted == 1
    gate.release()
    gate.admit("Q_a__b")
    assert gate.admitted == 2


def test_a_write_of_some_time_is_in_progress_until_it_ends() -> None:
    gate = WriteGate()
    with gate.writing("Q_a__b"):
        gate.hold("a backup", 2.0)
        assert (gate.in_progress, gate.admitted) == (1, 1)
    assert gate.in_progress == 0
    with pytest.raises(Maintenance), gate.writing("Q_a__b"):
        pytest.fail("it was admitted")
    assert gate.in_progress == 0


def test_registrations_of_processes_are_neither_held_nor_counted() -> None:
    gate = WriteGate()
    gate.exempt = frozenset({"KV_postroad_leases"})
    gate.hold("a backup", 2.0)
    gate.admit("KV_postroad_leases")
    with gate.writing("KV_postroad_leases"):
        pass
    assert gate.admitted == 0
