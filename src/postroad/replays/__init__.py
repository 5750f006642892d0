"""Replays: commands of the archive, or dead letters of a route, sent again on request."""
