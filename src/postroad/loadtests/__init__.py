"""Load tests: the server publishes to and consumes from a queue through its own HTTP port, and measures it."""
