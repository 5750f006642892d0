"""Settings of jobs."""

from dataclasses import dataclass

from postroad.kernel.configuration import Section, positive, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsSettings(Section):
    frames_keep_hours: int = setting(
        72, "Hours that frames of events are kept after the pipeline and the job index have read them.", positive
    )
    jobs_keep_days: int = setting(14, "Days that finished jobs can be queried.", positive)
