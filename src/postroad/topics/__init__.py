"""Topics: durable logs of messages by subject, that any number of readers replay and follow."""
