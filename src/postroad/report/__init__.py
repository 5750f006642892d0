"""The report of a day as one HTML page that stands for itself: rows in, text out."""
