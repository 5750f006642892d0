"""NATS JetStream: connection, group commit, stream reads, live tails, pull consumers, key-value buckets, leader election."""
