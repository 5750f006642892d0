"""Schedules: messages published to a queue at the times of a cron expression or in an interval."""
