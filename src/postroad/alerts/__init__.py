"""Alerts: urgent events of a tenant in a list, by email and by webhook."""
