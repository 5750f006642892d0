"""Sessions: messages published to a stream are copied to the durable stream of each subscribed session."""
