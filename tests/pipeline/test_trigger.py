"""When a batch runs."""

from postroad.pipeline.trigger import Trigger


def test_events_are_processed_at_every_look() -> None:
    trigger = Trigger(10, 60)
    assert trigger.is_due({"TELEMETRY": 1}, 0)
    trigger.ran(0, is_quiet=False, has_more=False)
    assert trigger.pause == 10
    assert trigger.is_due({"JOBS": 1}, 1)
    assert trigger.is_due({"TELEMETRY": 1}, 10)
    assert not trigger.is_due({}, 1000), "without messages there is no batch"


def test_samples_alone_are_processed_less_and_less_often() -> None:
    trigger, now, times = Trigger(10, 60), 0.0, []
    for _ in range(30):
        if trigger.is_due({"TELEMETRY": 5}, now):
            times.append(now)
            trigger.ran(now, is_quiet=True, has_more=False)
        now += trigger.pause
    assert times == [0, 20, 60, 120, 180, 240]
    assert trigger.interval == 60


def test_any_other_message_ends_the_quiet_time() -> None:
    trigger = Trigger(10, 60)
    for now in (0, 60, 120):
        trigger.ran(now, is_quiet=True, has_more=False)
    assert not trigger.is_due({"TELEMETRY": 5}, 130)
    assert trigger.is_due({"TELEMETRY": 5, "AUDIT": 1}, 130)
    trigger.ran(130, is_quiet=False, has_more=False)
    assert trigger.interval == 10
    assert trigger.is_due({"TELEMETRY": 5}, 140)


def test_a_backlog_is_processed_without_a_pause() -> None:
    trigger = Trigger(10, 60)
    trigger.ran(0, is_quiet=True, has_more=True)
    assert trigger.pause == 0
    assert trigger.is_due({"TELEMETRY": 5}, 0.1)


def test_a_request_makes_a_batch_of_samples_due_and_is_answered_by_the_next_look() -> None:
    trigger = Trigger(10, 60)
    for now in (0, 60, 120):
        trigger.ran(now, is_quiet=True, has_more=False)
    assert (trigger.interval, trigger.pause) == (60, 10)
    trigger.request()
    assert (trigger.interval, trigger.pause) == (10, 2)
    assert trigger.is_due({"TELEMETRY": 5}, 121)
    assert not trigger.is_due({}, 121), "there is nothing to process"
    seen = trigger.requests
    trigger.request()  # while the batch runs, whose end of the streams was known before
    trigger.answer(seen)
    assert trigger.is_requested
    trigger.answer(trigger.requests)
    assert (trigger.is_requested, trigger.pause) == (False, 10)


def test_a_period_longer_than_the_quiet_interval_stays() -> None:
    trigger = Trigger(300, 60)
    trigger.ran(0, is_quiet=True, has_more=False)
    assert (trigger.interval, trigger.pause) == (300, 300)
