"""What fuzzers of this folder share: how long they run, bytes that are nearly right, and values of any kind."""

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import hypothesis
from hypothesis import strategies as st

from tests.tiers import IS_THOROUGH, examples

T = TypeVar("T")

SEED = None if IS_THOROUGH else 8  # of random.Random

# The same examples each time, except in the profile `thorough`.
bounded = hypothesis.settings(
    max_examples=examples(50),
    derandomize=not IS_THOROUGH,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.function_scoped_fixture],
)

_DEEP = st.tuples(st.sampled_from([(b"[", b"]"), (b'{"a":', b"}")]), st.sampled_from([10, 400, 900, 985, 990, 995, 1000, 3000]))
_ODD = [b"", b"null", b"1e400", b'"\\ud800"', b'"\xff"', b"1" * 400, b"-0", b"NaN", b"\xef\xbb\xbf{}", b'{"a":1,"a":2}', b"\x00"]

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
odd_texts = st.text(max_size=300) | st.text(st.characters(max_codepoint=255), max_size=300)  # the latter is what headers can hold
odd_bytes = (
    st.binary(max_size=300) | st.sampled_from(_ODD) | _DEEP.map(lambda deep: deep[0][0] * deep[1] + b"1" + deep[0][1] * deep[1])
)


@st.composite
def nearly(draw: st.DrawFn, good: st.SearchStrategy[bytes]) -> bytes:
    """Something right, with a byte or two changed, added or left out, or a piece of it gone or twice."""
    text = bytearray(draw(good))
    for _ in range(draw(st.integers(1, 2))):
        begin, end = sorted((draw(st.integers(0, len(text))), draw(st.integers(0, len(text)))))
        put = draw(st.binary(min_size=1, max_size=2) | st.just(b"") | st.just(bytes(text[begin:end]) * 2) | st.sampled_from(_ODD))
        text[begin : draw(st.sampled_from([begin, begin + 1, end]))] = put
    return bytes(text)


def outcome(call: Callable[[], T], *expected: type[Exception]) -> T | None:
    """What the call gives, None if it raises one of these. Anything else that it raises is a fault."""
    try:
        return call()
    except expected:
        return None


def finished(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("it waits")
