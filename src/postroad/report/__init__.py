"""The report of a day as one self-contained HTML page."""
