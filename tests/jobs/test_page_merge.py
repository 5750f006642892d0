"""Two lists as one: every job once, newest first, whatever part of either each page sees."""

from hypothesis import given
from hypothesis import strategies as st

from postroad.api.jobs import Job, JobStatus
from postroad.jobs.page_merge import Key, KeyedJob, latest_of_each, merge


def placed(at: int, name: str, *, archived: bool = False, updated: str = "1") -> KeyedJob:
    job = Job(
        job_id=name,
        queue="q",
        status=JobStatus.DONE,
        attempts=1,
        created_at=str(at),
        updated_at=updated,
        last_error=None,
        correlation_id=None,
        message_id="m",
        archived=archived,
    )
    return KeyedJob((at, name), job)


def keys(page: list[Job]) -> list[Key]:
    return [(int(job.created_at), job.job_id) for job in page]


def test_the_known_one_wins() -> None:
    page = merge([placed(5, "a")], None, [placed(5, "a", archived=True), placed(4, "b", archived=True)], None, 10)
    assert [(job.job_id, job.archived) for job in page.jobs] == [("a", False), ("b", True)]
    assert page.following is None


def test_what_is_below_the_part_that_was_seen_waits() -> None:
    page = merge([placed(9, "a"), placed(3, "b")], None, [placed(7, "c", archived=True)], (5, "!"), 10)
    assert (keys(page.jobs), page.following) == ([(9, "a"), (7, "c")], (5, "!"))


def test_the_last_one_that_was_seen_is_in() -> None:
    page = merge([placed(9, "a")], None, [placed(7, "c", archived=True)], (7, "c"), 10)
    assert (keys(page.jobs), page.following) == ([(9, "a"), (7, "c")], (7, "c"))


def test_a_full_page_goes_on_after_its_last_job() -> None:
    page = merge([placed(9, "a"), placed(8, "b")], (8, "b"), [placed(7, "c", archived=True)], None, 2)
    assert (keys(page.jobs), page.following) == ([(9, "a"), (8, "b")], (8, "b"))


def test_the_later_end_of_a_job_counts() -> None:
    first, second = placed(1, "a", updated="1"), placed(1, "a", updated="2")
    assert latest_of_each([first, second]) == latest_of_each([second, first]) == {"a": second}


moments = st.sets(st.tuples(st.integers(0, 20), st.sampled_from("abc")), max_size=25)


@given(moments, moments, st.integers(1, 5), st.randoms(use_true_random=False))
def test_all_jobs_come_once_and_in_order(hot: set[Key], cold: set[Key], limit: int, chance: object) -> None:
    """`chance` says how far the archive is seen each time."""
    hot_names = {f"{at}{name}" for at, name in hot}
    seen: list[Key] = []
    before: Key = (99, "")
    for _ in range(200):
        known = sorted((key for key in hot if key < before), reverse=True)
        rest = known[:limit]
        following = rest[-1] if len(known) > limit else None
        floor: Key = following or (0, "")
        forgotten = sorted((key for key in cold if floor <= key < before), reverse=True)
        stop = chance.randint(0, len(forgotten))  # type: ignore[attr-defined]
        reached = None if stop == len(forgotten) else (forgotten[stop][0] + 1, "!")
        if reached is not None and reached >= before:
            reached = None  # what was not known is, by the next time
        shown = forgotten if reached is None else [key for key in forgotten if key >= reached]
        page = merge(
            [placed(at, f"{at}{name}") for at, name in rest],
            following and (following[0], f"{following[0]}{following[1]}"),
            [placed(at, f"{at}{name}", archived=True) for at, name in shown],
            reached,
            limit,
        )
        assert len(page.jobs) <= limit
        seen += [(int(job.created_at), job.job_id[-1]) for job in page.jobs]
        assert all(job.archived == (job.job_id not in hot_names) for job in page.jobs)
        if page.following is None:
            break
        at, name = page.following
        before = (at, name[-1] if name != "!" else "!")
    assert seen == sorted(hot | cold, reverse=True)
