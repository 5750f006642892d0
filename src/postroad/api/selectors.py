"""What selects messages by subject and values by key: shared by requests of topics and buckets and by tokens for them."""

from typing import Annotated

from msgspec import Meta

from postroad.kernel.matching import PATTERN, SUBJECT_CHARS_MAX

PATTERNS_MAX = 16  # of one request, one grant or one subscription
SubjectPattern = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=SUBJECT_CHARS_MAX,
        description="`*` is one token, a final `>` one or more.",
        extra_json_schema={"pattern": PATTERN},
    ),
]

KEY_CHARS_MAX = 256
_TOKEN = r"[-/_=A-Za-z0-9]+"  # noqa: S105  # of a key
KEY = rf"^{_TOKEN}(\.{_TOKEN})*$"
PREFIX = rf"^{_TOKEN}(\.{_TOKEN})*\.?$"
