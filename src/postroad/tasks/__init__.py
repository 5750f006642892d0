"""Long work that somebody asked for: it goes on by itself, says how far it is, survives crashes, and can be cancelled."""
