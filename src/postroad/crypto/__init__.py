"""Signing and encryption of secrets."""
