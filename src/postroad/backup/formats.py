"""The formats that an engine records, for `postroad upgrade --check`."""

import msgspec

from postroad.backup.create import installation_bucket
from postroad.installation.formats import FormatCheck, check_formats
from postroad.installation.records import FORMATS, InstallationRecord
from postroad.jetstream.management import stream_info
from postroad.runtime.engine_access import engine_access
from postroad.settings import Settings


async def stored_formats(settings: Settings) -> tuple[str, list[FormatCheck]]:
    """The version that wrote them, empty if none is recorded, and a check of each. Raises EngineUnavailable."""
    async with engine_access(settings, "postroad-upgrade") as connection:
        bucket = installation_bucket(connection)
        found = await bucket.get(FORMATS) if await stream_info(connection, bucket.stream) is not None else None
    if found is None or found.value is None:
        return "", check_formats({})
    record = msgspec.json.decode(found.value, type=InstallationRecord)
    return record.postroad, check_formats(record.versions)
