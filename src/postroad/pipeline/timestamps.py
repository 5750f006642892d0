"""Times as text, in Spark."""

from pyspark.sql import Column
from pyspark.sql import functions as F


def rfc3339_column(time: Column) -> Column:
    """`2026-11-16T05:00:00.000Z`, as `kernel.clock.rfc3339` writes it; the session's time zone must be UTC."""
    return F.date_format(time, "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'")
