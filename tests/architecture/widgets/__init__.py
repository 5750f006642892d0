"""A throw-away capability: what a package must contain, and nothing more."""
