"""Names of the pipeline's jobs, for `--jobs`. Imports nothing of Spark."""

from postroad.api.reports import reports


def job_names() -> tuple[str, ...]:
    """The jobs of the pipeline. Several reports may belong to one job."""
    return ("ingest", *dict.fromkeys(report.job_name for report in reports()), "job_history", "replay_selection", "compact")
