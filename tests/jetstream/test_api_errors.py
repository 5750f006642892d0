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
        (503, 10008, EngineUnavailable),  # no JetStream just now
        (503, 1, EngineUnavailable),
        (409, 10158, EngineUnavailable),  # an earlier try of the same message is on its way
        (400, 10025, EngineRefused),
        (404, 10059, EngineRefused),
    ],
)
def test_an_error_of_the_engine_has_one_meaning_here(code: int, err_code: int, meaning: type[PostroadError]) -> None:
    problem = translate(ApiError(code, err_code, "its words"))
    assert type(problem) is meaning
    assert problem.detail == f"its words ({err_code})"
    assert (problem.retry_after is not None) == (meaning in (EngineFull, EngineUnavailable))


def test_answers_to_a_publish_are_read() -> None:
    assert decode_pub_ack(b'{"stream":"s","seq":7}') == PubAck(seq=7)
    assert decode_pub_ack(b'{"stream":"s","seq":7,"duplicate":true}') == PubAck(seq=7, duplicate=True)
    assert decode_pub_ack(b'{"stream":"s","seq":9,"batch":"b","count":3}') == PubAck(seq=9, count=3)
    refused = decode_pub_ack(
        b'{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 1"},"stream":"s","seq":0}'
    )
    assert refused.error == ApiError(400, 10071, "wrong last sequence: 1")
