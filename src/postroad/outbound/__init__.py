"""Calls to addresses that users choose: one HTTP client, and the guard that keeps it away from what is not public."""
