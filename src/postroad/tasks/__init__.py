"""Long-running work on request: it continues by itself, reports progress, survives crashes and can be cancelled."""
