"""NATS JetStream: the child server, the connection, group commit, logs, tails, work queues, key-value, leadership."""
