"""The `postroad` command."""
