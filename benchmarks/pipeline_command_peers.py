"""The reports of commands in DuckDB and in Polars: minutes first, then hours and days."""

from pathlib import Path

import duckdb
import polars as pl

from benchmarks.pipeline_peers import Tables
from postroad.api.insights import Grain

_ROUTED = "('rate-limit-exceeded', 'fairness-violation', 'delivery-failure', 'command-mismatch')"
_REFUSED = ("rate-limit-exceeded", "fairness-violation")
_SECONDS = {"minute": 60, "hour": 3600, "day": 86_400}

_MINUTES = f"""
CREATE MACRO doublings(ms) AS floor(log2(ms))::BIGINT - 6;
CREATE MACRO bucket(ms) AS CASE WHEN ms < 128 THEN ms ELSE doublings(ms) * 64 + (ms >> doublings(ms)) END;
CREATE MACRO value(bucket) AS CASE WHEN bucket < 128 THEN bucket
    ELSE ((bucket % 64 + 64) << (bucket // 64 - 1)::BIGINT) + (1::BIGINT << (bucket // 64 - 2)::BIGINT) END;
CREATE MACRO tenant_of(name) AS split_part(name, '/', 1);
CREATE MACRO service_of(name) AS split_part(name, '/', 2);
CREATE VIEW events AS SELECT * EXCLUDE (minute), date_trunc('minute', time) AS minute FROM read_parquet('{{events}}/*.parquet');
CREATE TABLE counted AS SELECT tenant, minute, source, outcome, coalesce(reason, '') AS reason, coalesce(path, '') AS path,
    CASE outcome WHEN 'invalid' THEN '' ELSE target END AS target,
    CASE outcome WHEN 'invalid' THEN '' ELSE command_name END AS command,
    bucket(micros) AS bucket, count(*) AS n, max(micros) AS top FROM (
    SELECT *, event[16:] AS outcome, round(coalesce(dispatch_latency_ms, 0) * 1000)::BIGINT AS micros
    FROM events WHERE event LIKE 'snavio.command.%') GROUP BY ALL;
CREATE TABLE commands AS
    SELECT tenant, minute, 'source' AS role, service_of(source) AS service, target AS peer, command, outcome, reason, path,
        bucket, n, top FROM counted
    UNION ALL SELECT tenant_of(target), minute, 'target', service_of(target), '', command, outcome, reason, path, bucket, n, top
    FROM counted WHERE outcome != 'invalid' AND (outcome != 'failed' OR reason IN {_ROUTED});
CREATE TABLE marks AS SELECT tenant, minute, source, target, command_name AS command,
    count(*) FILTER (path = 'fast') AS warm, count(*) FILTER (path = 'slow') AS cold,
    count(*) FILTER (event = 'snavio.command.failed') AS refused
    FROM events
    WHERE event = 'snavio.command.delivered' OR (event = 'snavio.command.failed' AND reason IN {_REFUSED}) GROUP BY ALL;
CREATE TABLE fairness AS
    SELECT tenant, minute, 'source' AS role, service_of(source) AS service, target AS peer, command, warm, cold, refused
    FROM marks
    UNION ALL SELECT tenant_of(target), minute, 'target', service_of(target), source, command, warm, cold, refused FROM marks;
CREATE TABLE clocks AS SELECT tenant, minute, source, sign(millis) * bucket(abs(millis)) AS bucket, count(*) AS n,
    sum(millis) AS total FROM (SELECT *, round(skew_seconds * 1000)::BIGINT AS millis FROM events
    WHERE event = 'snavio.telemetry.skew_sample') GROUP BY ALL;
CREATE TABLE senders AS SELECT tenant, minute, source, count(*) FILTER (event = 'snavio.telemetry.skew_sample') AS samples,
    count(*) FILTER (event = 'snavio.telemetry.skew_near_limit') AS near,
    count(*) FILTER (event LIKE 'snavio.command.%' AND event != 'snavio.command.invalid') AS accepted,
    count(*) FILTER (reason IN ('timestamp-expired', 'timestamp-future')) AS refused
    FROM events WHERE event LIKE 'snavio.%' GROUP BY ALL;
CREATE TABLE limits AS SELECT minute, target, command_name AS command,
    count(*) FILTER (event = 'snavio.command.delivered') AS used,
    arg_max(max, time) AS most, arg_max(interval_seconds, time) AS every, max(time) FILTER (max IS NOT NULL) AS sampled_at,
    count(*) FILTER (event = 'snavio.command.failed') AS refused, count(shadow) AS shadow FROM events
    WHERE event IN ('snavio.command.delivered', 'limit.sampled')
        OR (event = 'snavio.command.failed' AND reason = 'rate-limit-exceeded') GROUP BY ALL;
CREATE TABLE telemetry AS SELECT tenant, minute, count(*) AS emitted FROM events WHERE event NOT LIKE '%.sampled' GROUP BY ALL;
"""
_GROUP = "tenant, time, role, service, peer, command, outcome, reason, path"
_ROWS = {
    "commands": f"""WITH summed AS (SELECT tenant, date_trunc('{{grain}}', minute) AS time, * EXCLUDE (tenant, minute, n, top),
        sum(n) AS n, max(top) AS top FROM commands GROUP BY ALL),
      ranked AS (SELECT *, sum(n) OVER (PARTITION BY {_GROUP} ORDER BY bucket ROWS UNBOUNDED PRECEDING) AS seen,
        sum(n) OVER (PARTITION BY {_GROUP}) AS count FROM summed)
      SELECT {_GROUP}, sum(n), {{percentiles}}, CASE outcome WHEN 'delivered' THEN max(top) / 1000 END
      FROM ranked GROUP BY {_GROUP}""",
    "fairness": """WITH summed AS (SELECT tenant, date_trunc('{grain}', minute) AS time, role, service, peer, command,
        sum(warm) AS warm, sum(cold) AS cold, sum(refused) AS refused FROM fairness GROUP BY ALL)
      SELECT tenant, time, role, service, peer, command, warm + cold AS dispatched, warm, cold, refused,
        CASE role WHEN 'target'
            THEN (warm + cold) / nullif(sum(warm + cold) OVER (PARTITION BY tenant, time, role, service, command), 0)
        END FROM summed""",
    "skew": """WITH summed AS (SELECT tenant, date_trunc('{grain}', minute) AS time, source, bucket, sum(n) AS n
        FROM clocks GROUP BY ALL),
      ranked AS (SELECT *, sum(n) OVER (PARTITION BY tenant, time, source ORDER BY bucket ROWS UNBOUNDED PRECEDING) AS seen,
        sum(n) OVER (PARTITION BY tenant, time, source) AS count FROM summed),
      quantiles AS (SELECT tenant, time, source, {quantiles} FROM ranked GROUP BY ALL),
      counts AS (SELECT tenant, date_trunc('{grain}', minute) AS time, source, sum(samples) AS samples, sum(near) AS near,
        sum(accepted) AS accepted, sum(refused) AS refused FROM senders GROUP BY ALL)
      SELECT tenant, time, service_of(source), samples, p1, p50, p99, least(1, near / greatest(1, accepted)), refused, 60
      FROM counts LEFT JOIN quantiles USING (tenant, time, source)""",
    "limits": """WITH known AS (SELECT target, command, arg_max(most, sampled_at) AS most, arg_max(every, sampled_at) AS every
        FROM limits GROUP BY ALL),
      summed AS (SELECT date_trunc('{grain}', minute) AS time, target, command, sum(used) AS used, sum(refused) AS refused,
        sum(shadow) AS shadow FROM limits GROUP BY ALL)
      SELECT tenant_of(target), time, service_of(target), command, used, most, every, used * every / (most * {seconds}),
        refused, shadow FROM summed JOIN known USING (target, command)""",
    "telemetry": "SELECT tenant, date_trunc('{grain}', minute) AS time, sum(emitted) FROM telemetry GROUP BY ALL",
}


def duckdb_command_reports(events: Path, threads: int) -> Tables:
    reaches = "FILTER (seen >= ceil(count * {0} / 100))"
    percentile = f"CASE outcome WHEN 'delivered' THEN least(value(min(bucket) {reaches}), max(top)) / 1000 END AS p{{0}}"
    quantile = f"sign(min(bucket) {reaches}) * value(abs(min(bucket) {reaches})) / 1000 AS p{{0}}"
    parts = {
        "percentiles": ", ".join(percentile.format(percent) for percent in (50, 95, 99)),
        "quantiles": ", ".join(quantile.format(percent) for percent in (1, 50, 99)),
    }
    with duckdb.connect(config={"threads": threads}) as database:
        database.execute("SET TimeZone = 'UTC'")
        database.execute(_MINUTES.format(events=events))
        return {
            (report, grain): database.sql(query.format(grain=grain, seconds=_SECONDS[grain], **parts)).to_arrow_table()
            for report, query in _ROWS.items()
            for grain in Grain
        }


def _is(*names: str) -> pl.Expr:
    return pl.col("event").is_in(names)


def _part(column: str, number: int) -> pl.Expr:
    return pl.col(column).str.split_exact("/", 1).struct.field(f"field_{number}")


def _bucket(number: pl.Expr) -> pl.Expr:
    doublings = 63 - number.bitwise_leading_zeros().cast(pl.Int64) - 6
    return pl.when(number < 128).then(number).otherwise(doublings * 64 + number // pl.lit(2, pl.Int64).pow(doublings.clip(0)))


def _value(bucket: pl.Expr) -> pl.Expr:
    doublings, two = bucket // 64 - 1, pl.lit(2, pl.Int64)
    middle = (bucket % 64 + 64) * two.pow(doublings.clip(0)) + two.pow((doublings - 1).clip(0))
    return pl.when(bucket < 128).then(bucket).otherwise(middle)


def _count(condition: pl.Expr, name: str) -> pl.Expr:
    return condition.fill_null(False).sum().cast(pl.Int64).alias(name)


def polars_command_reports(events: Path) -> Tables:
    every = pl.scan_parquet(events / "*.parquet").with_columns(minute=pl.col("time").dt.truncate("1m"))
    commands, fairness, clocks, senders, limits, telemetry = pl.collect_all(
        [_commands(every), _fairness(every), _clocks(every), _senders(every), _limits(every), _telemetry(every)]
    )
    tables: Tables = {}
    for grain in Grain:
        time = pl.col("minute").dt.truncate({"day": "1d", "hour": "1h", "minute": "1m"}[grain]).alias("time")
        found = {
            "commands": _command_rows(commands, time),
            "fairness": _fairness_rows(fairness, time),
            "skew": _skew_rows(clocks, senders, time),
            "limits": _limit_rows(limits, time, _SECONDS[grain]),
            "telemetry": telemetry.group_by("tenant", time).agg(pl.col("emitted").sum()),
        }
        tables |= {(report, grain): rows.to_arrow() for report, rows in found.items()}
    return tables


def _commands(every: pl.LazyFrame) -> pl.LazyFrame:
    micros = (pl.col("dispatch_latency_ms").fill_null(0) * 1000).round().cast(pl.Int64)
    is_invalid = pl.col("outcome") == "invalid"
    counted = (
        every.filter(pl.col("event").str.starts_with("snavio.command."))
        .with_columns(outcome=pl.col("event").str.slice(15), micros=micros)
        .group_by(
            "tenant",
            "minute",
            "source",
            "outcome",
            pl.col("reason").fill_null(""),
            pl.col("path").fill_null(""),
            pl.when(is_invalid).then(pl.lit("")).otherwise("target").alias("target"),
            pl.when(is_invalid).then(pl.lit("")).otherwise("command_name").alias("command"),
            _bucket(pl.col("micros")).alias("bucket"),
        )
        .agg(pl.len().cast(pl.Int64).alias("n"), pl.col("micros").max().alias("top"))
    )
    label = ["command", "outcome", "reason", "path", "bucket", "n", "top"]
    sent = counted.select(
        "tenant",
        "minute",
        pl.lit("source").alias("role"),
        _part("source", 1).alias("service"),
        pl.col("target").alias("peer"),
        *label,
    )
    routed = pl.col("reason").is_in(["rate-limit-exceeded", "fairness-violation", "delivery-failure", "command-mismatch"])
    received = counted.filter(~is_invalid & ((pl.col("outcome") != "failed") | routed)).select(
        _part("target", 0).alias("tenant"),
        "minute",
        pl.lit("target").alias("role"),
        _part("target", 1).alias("service"),
        pl.lit("").alias("peer"),
        *label,
    )
    return pl.concat([sent, received])


def _command_rows(commands: pl.DataFrame, time: pl.Expr) -> pl.DataFrame:
    group = ["tenant", "time", "role", "service", "peer", "command", "outcome", "reason", "path"]
    ranked = (
        commands.lazy()
        .group_by("tenant", time, *group[2:], "bucket")
        .agg(pl.col("n").sum(), pl.col("top").max())
        .sort(*group, "bucket")
        .with_columns(seen=pl.col("n").cum_sum().over(group), count=pl.col("n").sum().over(group))
    )
    is_delivered = pl.col("outcome") == "delivered"

    def percentile(percent: int) -> pl.Expr:
        reaches = pl.col("seen") >= (pl.col("count") * percent + 99) // 100
        return pl.min_horizontal(_value(pl.col("bucket")).filter(reaches).min(), pl.col("top").max()).alias(f"p{percent}")

    columns = ["p50", "p95", "p99", "max"]
    return (
        ranked.group_by(group)
        .agg(pl.col("n").sum().alias("count"), *(percentile(one) for one in (50, 95, 99)), pl.col("top").max().alias("max"))
        .with_columns(pl.when(is_delivered).then(pl.col(name) / 1000).alias(name) for name in columns)
        .select(*group, "count", *columns)
        .collect()
    )


def _fairness(every: pl.LazyFrame) -> pl.LazyFrame:
    is_failed = _is("snavio.command.failed")
    marks = (
        every.filter(_is("snavio.command.delivered") | (is_failed & pl.col("reason").is_in(_REFUSED)))
        .group_by("tenant", "minute", "source", "target", pl.col("command_name").alias("command"))
        .agg(_count(pl.col("path") == "fast", "warm"), _count(pl.col("path") == "slow", "cold"), _count(is_failed, "refused"))
    )
    counts = ["command", "warm", "cold", "refused"]
    return pl.concat(
        [
            marks.select(
                "tenant",
                "minute",
                pl.lit("source").alias("role"),
                _part("source", 1).alias("service"),
                pl.col("target").alias("peer"),
                *counts,
            ),
            marks.select(
                _part("target", 0).alias("tenant"),
                "minute",
                pl.lit("target").alias("role"),
                _part("target", 1).alias("service"),
                pl.col("source").alias("peer"),
                *counts,
            ),
        ]
    )


def _fairness_rows(fairness: pl.DataFrame, time: pl.Expr) -> pl.DataFrame:
    counts = ["warm", "cold", "refused"]
    route = ["tenant", "time", "role", "service", "command"]
    summed = fairness.group_by("tenant", time, "role", "service", "peer", "command").agg(pl.col(name).sum() for name in counts)
    summed = summed.with_columns(dispatched=pl.col("warm") + pl.col("cold"))
    share = pl.col("dispatched") / pl.col("dispatched").sum().over(route)
    summed = summed.with_columns(share=pl.when(pl.col("role") == "target").then(share))
    return summed.select("tenant", "time", "role", "service", "peer", "command", "dispatched", *counts, "share")


def _clocks(every: pl.LazyFrame) -> pl.LazyFrame:
    millis = (pl.col("skew_seconds") * 1000).round().cast(pl.Int64)
    return (
        every.filter(_is("snavio.telemetry.skew_sample"))
        .with_columns(millis=millis)
        .group_by("tenant", "minute", "source", (pl.col("millis").sign() * _bucket(pl.col("millis").abs())).alias("bucket"))
        .agg(pl.len().cast(pl.Int64).alias("n"))
    )


def _senders(every: pl.LazyFrame) -> pl.LazyFrame:
    is_outcome = pl.col("event").str.starts_with("snavio.command.")
    return (
        every.filter(pl.col("event").str.starts_with("snavio."))
        .group_by("tenant", "minute", "source")
        .agg(
            _count(_is("snavio.telemetry.skew_sample"), "samples"),
            _count(_is("snavio.telemetry.skew_near_limit"), "near"),
            _count(is_outcome & ~_is("snavio.command.invalid"), "accepted"),
            _count(pl.col("reason").is_in(["timestamp-expired", "timestamp-future"]), "refused"),
        )
    )


def _skew_rows(clocks: pl.DataFrame, senders: pl.DataFrame, time: pl.Expr) -> pl.DataFrame:
    group = ["tenant", "time", "source"]
    ranked = (
        clocks.lazy()
        .group_by("tenant", time, "source", "bucket")
        .agg(pl.col("n").sum())
        .sort(*group, "bucket")
        .with_columns(seen=pl.col("n").cum_sum().over(group), count=pl.col("n").sum().over(group))
    )

    def quantile(percent: int) -> pl.Expr:
        bucket = pl.col("bucket").filter(pl.col("seen") >= (pl.col("count") * percent + 99) // 100).min()
        return (bucket.sign() * _value(bucket.abs()) / 1000).alias(f"p{percent}")

    quantiles = ranked.group_by(group).agg(quantile(percent) for percent in (1, 50, 99)).collect()
    counts = senders.group_by("tenant", time, "source").agg(
        pl.col(name).sum() for name in ("samples", "near", "accepted", "refused")
    )
    near = (pl.col("near") / pl.max_horizontal(pl.col("accepted"), pl.lit(1))).clip(upper_bound=1).alias("nearLimit")
    return counts.join(quantiles, on=group, how="left").select(
        "tenant",
        "time",
        _part("source", 1).alias("service"),
        "samples",
        "p1",
        "p50",
        "p99",
        near,
        "refused",
        pl.lit(60).alias("window"),
    )


def _limits(every: pl.LazyFrame) -> pl.LazyFrame:
    is_delivered, is_failed, is_sample = _is("snavio.command.delivered"), _is("snavio.command.failed"), _is("limit.sampled")
    at = pl.col("time").filter(is_sample)
    return (
        every.filter(is_delivered | is_sample | (is_failed & (pl.col("reason") == "rate-limit-exceeded")))
        .group_by("minute", "target", pl.col("command_name").alias("command"))
        .agg(
            _count(is_delivered, "used"),
            _count(is_failed, "refused"),
            pl.col("shadow").count().cast(pl.Int64).alias("shadow"),
            pl.col("max").filter(is_sample).sort_by(at).last().alias("most"),
            pl.col("interval_seconds").filter(is_sample).sort_by(at).last().alias("every"),
        )
    )


def _limit_rows(limits: pl.DataFrame, time: pl.Expr, seconds: int) -> pl.DataFrame:
    latest = (
        limits.filter(pl.col("most").is_not_null())
        .sort("minute")
        .group_by("target", "command")
        .agg(pl.col("most", "every").last())
    )
    summed = limits.group_by("target", time, "command").agg(pl.col(name).sum() for name in ("used", "refused", "shadow"))
    usage = (pl.col("used") * pl.col("every") / (pl.col("most") * seconds)).alias("usage")
    return summed.join(latest, on=["target", "command"]).select(
        _part("target", 0).alias("tenant"),
        "time",
        _part("target", 1).alias("service"),
        "command",
        "used",
        "most",
        "every",
        usage,
        "refused",
        "shadow",
    )


def _telemetry(every: pl.LazyFrame) -> pl.LazyFrame:
    return (
        every.filter(~pl.col("event").str.ends_with(".sampled"))
        .group_by("tenant", "minute")
        .agg(pl.len().cast(pl.Int64).alias("emitted"))
    )
