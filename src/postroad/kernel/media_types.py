"""Media types of content."""

JSON = "application/json"
BYTES = "application/octet-stream"
CONTENT_TYPE_CHARS_MAX = 256
MEDIA_TYPE = r"^[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+( *;[ -~]*)?$"


def is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == JSON or kind.endswith("+json")


def is_text(content_type: str) -> bool:
    return content_type.lstrip().lower().startswith("text/")
