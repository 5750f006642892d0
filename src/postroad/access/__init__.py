"""Who may do what: tenants, keys and the platform key that seals receipts."""
