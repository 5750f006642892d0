"""Manifests: the record of what `postroad apply` has created."""
