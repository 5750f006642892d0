"""The web console: static pages that use the public API."""
