"""The reports of the pipeline in DuckDB and in Polars: minutes first, then hours and days."""

from collections.abc import Sequence
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]

from postroad.api.insights import Grain

Tables = dict[tuple[str, str], pa.Table]

_TRAFFIC = ("requests", "bytes_in", "bytes_out", "appends", "append_bytes", "fanout_messages")
_LEVELS = ("ready", "leased", "delayed", "dead")
_SESSIONS = ("subscribed", "unsubscribed", "touched", "deleted", "expired")
_USAGE = ("published", "published_bytes", "deliveries", "done", "dead", *_TRAFFIC)

_MINUTES = """
CREATE MACRO doublings(ms) AS floor(log2(ms))::BIGINT - 6;
CREATE MACRO bucket(ms) AS CASE WHEN ms < 128 THEN ms ELSE doublings(ms) * 64 + (ms >> doublings(ms)) END;
CREATE MACRO value(bucket) AS CASE WHEN bucket < 128 THEN bucket
    ELSE ((bucket % 64 + 64) << (bucket // 64 - 1)::BIGINT) + (1::BIGINT << (bucket // 64 - 2)::BIGINT) END;
CREATE VIEW events AS SELECT *, date_trunc('minute', time) AS minute FROM read_parquet('{events}/*.parquet');
CREATE TABLE latency AS
    SELECT tenant, minute, queue, phase, bucket(ms) AS bucket, count(*) AS n, sum(ms) AS total, max(ms) AS top FROM (
    SELECT *, CASE event WHEN 'job.done' THEN 'processing' ELSE 'wait' END AS phase,
        CASE event WHEN 'job.done' THEN processing_ms ELSE wait_ms END AS ms
    FROM events WHERE event = 'job.done' OR (event = 'job.leased' AND attempt = 1)) GROUP BY ALL;
CREATE TABLE usage AS SELECT tenant, minute,
    count(*) FILTER (event = 'job.queued') AS published, sum(payload_bytes) AS published_bytes,
    count(*) FILTER (event = 'job.leased') AS deliveries, count(*) FILTER (event = 'job.done') AS done,
    count(*) FILTER (event = 'job.dead') AS dead, {traffic},
    sum(round(bytes * seconds)) AS byte_seconds, arg_max(bytes, time) AS stored, max(time) FILTER (bytes IS NOT NULL) AS stored_at
    FROM events WHERE event IN ('job.queued', 'job.leased', 'job.done', 'job.dead', 'traffic.sampled', 'storage.sampled')
    GROUP BY ALL;
CREATE TABLE dead_letters AS SELECT tenant, minute, CASE event WHEN 'job.dead' THEN queue ELSE from_queue END AS queue,
    CASE event WHEN 'job.dead' THEN reason[:200] ELSE 'redriven' END AS reason, count(*) AS n,
    count(*) FILTER (event = 'job.dead' AND attempt = 1) AS first_attempt, max(time) AS last_at
    FROM events WHERE event IN ('job.dead', 'job.redriven') GROUP BY ALL;
CREATE TABLE sessions AS SELECT tenant, minute, count(*) FILTER (event = 'session.subscribed') AS subscribed,
    count(*) FILTER (event = 'session.unsubscribed') AS unsubscribed, count(*) FILTER (event = 'session.touched') AS touched,
    count(*) FILTER (event = 'session.ended' AND NOT is_expired) AS deleted,
    count(*) FILTER (event = 'session.ended' AND is_expired) AS expired
    FROM events WHERE event LIKE 'session.%' GROUP BY ALL;
CREATE TABLE backlog AS SELECT tenant, minute, queue, count(*) AS n, {levels}, max(ready) AS ready_top,
    max(coalesce(oldest_age_ms, 0)) AS oldest_top FROM events WHERE event = 'queue.sampled' GROUP BY ALL;
"""
_ROWS = {
    "latency": """WITH counted AS (SELECT tenant, date_trunc('{grain}', minute) AS time, queue, phase, bucket,
        sum(n) AS n, sum(total) AS total, max(top) AS top FROM latency GROUP BY ALL),
      ranked AS (SELECT *, sum(n) OVER (PARTITION BY tenant, time, queue, phase ORDER BY bucket ROWS UNBOUNDED PRECEDING) AS seen,
        sum(n) OVER (PARTITION BY tenant, time, queue, phase) AS count FROM counted)
      SELECT tenant, time, queue, phase, sum(n) AS count, {percentiles}, max(top) AS max, sum(total) / sum(n) AS mean
      FROM ranked GROUP BY tenant, time, queue, phase""",
    "usage": """SELECT tenant, date_trunc('{grain}', minute) AS time, {usage}, coalesce(sum(byte_seconds), 0) / 3600,
      coalesce(arg_max(stored, stored_at), 0) FROM usage GROUP BY ALL""",
    "dead-letters": """SELECT tenant, date_trunc('{grain}', minute) AS time, queue, reason, sum(n), sum(first_attempt),
      max(last_at) FROM dead_letters GROUP BY ALL""",
    "sessions": "SELECT tenant, date_trunc('{grain}', minute) AS time, {sessions} FROM sessions GROUP BY ALL",
    "backlog": """SELECT tenant, date_trunc('{grain}', minute) AS time, queue, sum(ready) / sum(n), max(ready_top),
      sum(leased) / sum(n), sum(delayed) / sum(n), sum(dead) / sum(n), max(oldest_top) FROM backlog GROUP BY ALL""",
}


def duckdb_reports(events: Path, threads: int) -> Tables:
    with duckdb.connect(config={"threads": threads}) as database:
        database.execute("SET TimeZone = 'UTC'")
        database.execute(
            _MINUTES.format(events=events, traffic=_each("sum({0}) AS {0}", _TRAFFIC), levels=_each("sum({0}) AS {0}", _LEVELS))
        )
        parts = {
            "percentiles": _each(
                "least(value(min(bucket) FILTER (seen >= ceil(count * {0} / 100))), max(top)) AS p{0}", ("50", "95", "99")
            ),
            "usage": _each("coalesce(sum({0}), 0)", _USAGE),
            "sessions": _each("sum({0})", _SESSIONS),
        }
        return {
            (report, grain): database.sql(query.format(grain=grain, **parts)).to_arrow_table()
            for report, query in _ROWS.items()
            for grain in Grain
        }


def _each(text: str, names: Sequence[str]) -> str:
    return ", ".join(text.format(name) for name in names)


def exact_percentiles(events: Path, threads: int) -> list[tuple[str, str, str, int, int, int]]:
    """`tenant queue phase p50 p95 p99` of each day, by sorting everything."""
    exact = _each("waits[ceil(len(waits) * {0} / 100)::BIGINT]", ("50", "95", "99"))
    with duckdb.connect(config={"threads": threads}) as database:
        return database.execute(
            f"""SELECT tenant, queue, phase, {exact} FROM (SELECT tenant, queue,
                CASE event WHEN 'job.done' THEN 'processing' ELSE 'wait' END AS phase,
                list_sort(list(CASE event WHEN 'job.done' THEN processing_ms ELSE wait_ms END)) AS waits
                FROM read_parquet('{events}/*.parquet')
                WHERE event = 'job.done' OR (event = 'job.leased' AND attempt = 1) GROUP BY ALL)"""
        ).fetchall()


def polars_reports(events: Path) -> Tables:
    every = pl.scan_parquet(events / "*.parquet").with_columns(minute=pl.col("time").dt.truncate("1m"))
    latency, usage, dead, sessions, backlog = pl.collect_all(
        [_latency(every), _usage(every), _dead_letters(every), _sessions(every), _backlog(every)]
    )
    tables: Tables = {}
    for grain in Grain:
        time = pl.col("minute").dt.truncate({"day": "1d", "hour": "1h", "minute": "1m"}[grain]).alias("time")
        who, queue = ["tenant", time], ["tenant", time, "queue"]
        means = [(pl.col(name).sum() / pl.col("n").sum()).alias(name) for name in _LEVELS]
        found = {
            "latency": _latency_rows(latency, time),
            "usage": usage.group_by(who).agg(
                *(pl.col(name).sum() for name in _USAGE),
                pl.col("byte_seconds").sum() / 3600,
                pl.col("stored").sort_by("stored_at", nulls_last=False).last().fill_null(0),
            ),
            "dead-letters": dead.group_by([*queue, "reason"]).agg(
                pl.col("n").sum(), pl.col("first_attempt").sum(), pl.col("last_at").max()
            ),
            "sessions": sessions.group_by(who).agg(pl.col(name).sum() for name in _SESSIONS),
            "backlog": backlog.group_by(queue).agg(means[0], pl.col("ready_top").max(), *means[1:], pl.col("oldest_top").max()),
        }
        tables |= {(report, grain): rows.to_arrow() for report, rows in found.items()}
    return tables


def _is(*names: str) -> pl.Expr:
    return pl.col("event").is_in(names)


def _latency(every: pl.LazyFrame) -> pl.LazyFrame:
    ms = pl.when(_is("job.done")).then("processing_ms").otherwise("wait_ms")
    doublings = 63 - pl.col("ms").bitwise_leading_zeros().cast(pl.Int64) - 6
    coarse = doublings * 64 + pl.col("ms") // pl.lit(2, pl.Int64).pow(doublings)
    return (
        every.filter(_is("job.done") | (_is("job.leased") & (pl.col("attempt") == 1)))
        .select(
            "tenant",
            "minute",
            "queue",
            ms.alias("ms"),
            phase=pl.when(_is("job.done")).then(pl.lit("processing")).otherwise(pl.lit("wait")),
        )
        .group_by("tenant", "minute", "queue", "phase", pl.when(pl.col("ms") < 128).then("ms").otherwise(coarse).alias("bucket"))
        .agg(pl.len().cast(pl.Int64).alias("n"), pl.col("ms").sum().alias("total"), pl.col("ms").max().alias("top"))
    )


def _latency_rows(latency: pl.DataFrame, time: pl.Expr) -> pl.DataFrame:
    group = ["tenant", "time", "queue", "phase"]
    counted = (
        latency.lazy()
        .group_by("tenant", time, "queue", "phase", "bucket")
        .agg(pl.col("n").sum(), pl.col("total").sum(), pl.col("top").max())
        .sort(*group, "bucket")
        .with_columns(seen=pl.col("n").cum_sum().over(group), count=pl.col("n").sum().over(group))
    )
    doublings = pl.col("bucket") // 64 - 1
    two = pl.lit(2, pl.Int64)
    middle = (pl.col("bucket") % 64 + 64) * two.pow(doublings.clip(0)) + two.pow((doublings - 1).clip(0))
    value = pl.when(pl.col("bucket") < 128).then("bucket").otherwise(middle)

    def percentile(percent: int) -> pl.Expr:
        reaches = pl.col("seen") >= (pl.col("count") * percent + 99) // 100
        return pl.min_horizontal(value.filter(reaches).min(), pl.col("top").max()).alias(f"p{percent}")

    return (
        counted.group_by(group)
        .agg(
            pl.col("n").sum().alias("count"),
            percentile(50),
            percentile(95),
            percentile(99),
            pl.col("top").max().alias("max"),
            (pl.col("total").sum() / pl.col("n").sum()).alias("mean"),
        )
        .collect()
    )


def _usage(every: pl.LazyFrame) -> pl.LazyFrame:
    kinds = {"published": "job.queued", "deliveries": "job.leased", "done": "job.done", "dead": "job.dead"}
    counts = {name: _is(kind).sum().cast(pl.Int64).alias(name) for name, kind in kinds.items()}
    sums = {
        "published_bytes": pl.col("payload_bytes").sum().alias("published_bytes"),
        **{name: pl.col(name).sum() for name in _TRAFFIC},
    }
    return (
        every.filter(_is(*kinds.values(), "traffic.sampled", "storage.sampled"))
        .group_by("tenant", "minute")
        .agg(
            *({**counts, **sums}[name] for name in _USAGE),
            (pl.col("bytes") * pl.col("seconds")).round().sum().alias("byte_seconds"),
            pl.col("bytes")
            .filter(_is("storage.sampled"))
            .sort_by(pl.col("time").filter(_is("storage.sampled")))
            .last()
            .alias("stored"),
            pl.col("time").filter(_is("storage.sampled")).max().alias("stored_at"),
        )
    )


def _dead_letters(every: pl.LazyFrame) -> pl.LazyFrame:
    is_dead = _is("job.dead")
    return (
        every.filter(_is("job.dead", "job.redriven"))
        .group_by(
            "tenant",
            "minute",
            pl.when(is_dead).then("queue").otherwise("from_queue").alias("queue"),
            pl.when(is_dead).then(pl.col("reason").str.slice(0, 200)).otherwise(pl.lit("redriven")).alias("reason"),
        )
        .agg(
            pl.len().cast(pl.Int64).alias("n"),
            (is_dead & (pl.col("attempt") == 1)).sum().cast(pl.Int64).alias("first_attempt"),
            pl.col("time").max().alias("last_at"),
        )
    )


def _sessions(every: pl.LazyFrame) -> pl.LazyFrame:
    label = (
        pl.when(_is("session.ended"))
        .then(pl.when("is_expired").then(pl.lit("expired")).otherwise(pl.lit("deleted")))
        .otherwise(pl.col("event").str.strip_prefix("session."))
    )
    return (
        every.filter(pl.col("event").str.starts_with("session."))
        .group_by("tenant", "minute")
        .agg((label == name).sum().cast(pl.Int64).alias(name) for name in _SESSIONS)
    )


def _backlog(every: pl.LazyFrame) -> pl.LazyFrame:
    return (
        every.filter(_is("queue.sampled"))
        .group_by("tenant", "minute", "queue")
        .agg(
            pl.len().alias("n"),
            *(pl.col(name).sum() for name in _LEVELS),
            pl.col("ready").max().alias("ready_top"),
            pl.col("oldest_age_ms").fill_null(0).max().alias("oldest_top"),
        )
    )
