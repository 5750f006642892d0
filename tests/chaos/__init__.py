"""Faults at random while clients work, and a model of what was acknowledged that the outcome is held against."""
