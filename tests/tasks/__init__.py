"""Tests of long-running tasks."""
