"""Messages that the pipeline publishes and the service reads: one module for each kind.

A field may be added without a new version; a field that changes its meaning, or is removed, needs one. The forms are those of
decision 0021.
"""
