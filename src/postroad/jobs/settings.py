"""Settings of jobs."""

from dataclasses import dataclass

from postroad.kernel.configuration import Section, positive, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsSettings(Section):
    jobs_keep_days: int = setting(14, "Days that finished jobs can be queried.", positive)
