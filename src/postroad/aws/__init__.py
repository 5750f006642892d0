"""The wire protocols of Amazon SQS and STS on the queues of a tenant. Nothing is stored here."""
