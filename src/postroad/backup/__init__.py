"""Backup and restore of an installation, or of one tenant, with the engine's snapshots."""
