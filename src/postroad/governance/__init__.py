"""Audit log and tenant settings."""
