"""Versions of stored formats."""

from hypothesis import given
from hypothesis import strategies as st

from postroad.installation.formats import FORMATS, Format, check_formats, too_new, written_versions
from tests.architecture.source import ROOT

OLD = (Format("frames", "events", "0007", writes=1, reads=1),)
READS_NEXT = (Format("frames", "events", "0007", writes=1, reads=2),)
WRITES_NEXT = (Format("frames", "events", "0007", writes=2, reads=2),)


def test_a_format_is_upgraded_over_two_releases_that_run_side_by_side() -> None:
    recorded = written_versions({}, OLD)
    assert too_new(recorded, READS_NEXT) == []
    recorded = written_versions(recorded, READS_NEXT)
    assert too_new(recorded, OLD) == [], "the old version still runs"
    recorded = written_versions(recorded, WRITES_NEXT)
    assert too_new(recorded, READS_NEXT) == [], "two adjacent versions run side by side"
    assert too_new(recorded, OLD) == ["frames 2"]
    assert written_versions(recorded, READS_NEXT) == {"frames": 2}, "the record never goes back"


def test_the_check_says_what_an_upgrade_will_do() -> None:
    [one] = check_formats({"frames": 1}, WRITES_NEXT)
    assert one.is_upgrade and one.result == "will be upgraded to 2"
    [one] = check_formats({"frames": 3}, WRITES_NEXT)
    assert one.is_too_new and "newer version" in one.result
    assert [one.result for one in check_formats({}, OLD)] == ["ok"]


def test_a_format_that_is_not_known_here_is_too_new() -> None:
    assert too_new({"frames": 1, "holograms": 1}, OLD) == ["holograms 1"]


@given(st.dictionaries(st.sampled_from([one.name for one in FORMATS]), st.integers(1, 3)))
def test_what_this_version_records_it_can_read_unless_it_was_too_new_before(recorded: dict[str, int]) -> None:
    before = too_new(recorded)
    assert too_new(written_versions(recorded)) == before


def test_each_format_is_described_by_a_decision() -> None:
    for one in FORMATS:
        assert list((ROOT / "docs" / "decisions").glob(f"{one.decision}-*.md")), one.name
