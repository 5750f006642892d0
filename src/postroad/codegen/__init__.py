"""Generators of code that follows from the route table: SDK methods and CLI commands (`make generate`)."""
