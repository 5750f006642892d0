"""Checks of the guarantees against a running installation, by requests that any client can make."""
