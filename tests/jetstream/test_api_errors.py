import pytest

from postroad.jetstream.api_errors import ApiError, PubAck, decode_pub_ack, translate
from postroad.kernel.errors import Conflict, EngineFull, EngineRefused, EngineUnavailable, PostroadError, TooLarge


@pytest.mark.parametrize(
    ("code", "err_code", "meaning"),
    [
        (400, 10071, Conflict),  # wrong last sequence of the subject
        (400, 10070, Conflict),  # wrong last message id
        (503, 10077, EngineFull),  # the stream is at its limit
        (500, 10047, EngineFull),  # no storage left
        (503, 10023, EngineFull),  # insufficient resources
        (400, 10054, TooLarge),
        (503, 10008, EngineUnavailable),  # JetStream is not available
        (503, 1, EngineUnavailable),
        (409, 10158, EngineUnavailable),  # an earlier attempt of the same message is in progress
        (400, 10005, EngineUnavailable),  # no peers at present
        (400, 10025, EngineRefused),
        (404, 10059, EngineRefused),
    ],
)
def test_each_engine_error_is_translated(code: int, err_code: int, meaning: type[PostroadError]) -> None:
    error = translate(ApiError(code, err_code, "description"))
    assert type(error) is meaning
    assert error.detail == f"description ({err_code})"
    assert (error.retry_after is not None) == (meaning in (EngineFull, EngineUnavailable))


def test_a_full_disk_is_a_full_store_and_names_no_file() -> None:
    error = translate(
        ApiError(500, 10104, "error creating store for consumer: write /data/obs/meta.inf.tmp: no space left on device")
    )
    assert type(error) is EngineFull
    assert error.detail == "the disk of the engine is full (10104)"


def test_publish_responses_are_decoded() -> None:
    assert decode_pub_ack(b'{"stream":"s","seq":7}') == PubAck(seq=7)
    assert decode_pub_ack(b'{"stream":"s","seq":7,"duplicate":true}') == PubAck(seq=7, duplicate=True)
    assert decode_pub_ack(b'{"stream":"s","seq":9,"batch":"b","count":3}') == PubAck(seq=9, count=3)
    refused = decode_pub_ack(
        b'{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 1"},"stream":"s","seq":0}'
    )
    assert refused.error == ApiError(400, 10071, "wrong last sequence: 1")


def test_a_placement_tag_that_no_server_has_is_refused() -> None:
    description = "no suitable peers for placement, tags not matched ['eu']"
    assert type(translate(ApiError(400, 10005, description))) is EngineRefused
