"""Signing of tokens, encryption of secrets and positions, with keys derived from the platform key."""
