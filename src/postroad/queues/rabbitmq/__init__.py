"""Queues in RabbitMQ. The only package that imports an AMQP client."""
