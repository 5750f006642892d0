"""For `tests/` and `packages/`."""

pytest_plugins = ["tests.tiers", "tests.forks"]
