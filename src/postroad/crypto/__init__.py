"""Signing of tokens and encryption of secrets, with keys derived from the platform key."""
