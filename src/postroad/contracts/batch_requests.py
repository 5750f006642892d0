"""Requests for a batch: plain messages, which are not stored. A pipeline that runs processes what has arrived, soon.

A gateway sends one when a report is read, at most once a second. Without a pipeline they are lost, which is no problem.
"""

SUBJECT = "postroad.pipeline.batch"
