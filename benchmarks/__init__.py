"""Measurements: each beside a peer in the same run, so that the ratio means something on any machine."""
