"""The engine as the pipeline uses it: how to reach it, how far its streams are, and what it is told."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession

from postroad.settings import Settings
from spark_jetstream.api import JetStreamApi
from spark_jetstream.client import Client
from spark_jetstream.errors import JetStreamError
from spark_jetstream.options import write_options
from spark_jetstream.protocol import encode_headers
from spark_jetstream.publisher import Message, Publisher
from spark_jetstream.writer import header_lines

_MESSAGES_PER_PARTITION = 1_000


def engine_options(settings: Settings) -> dict[str, str]:
    """The data source's options for the engine that these settings name."""
    if settings.nats_url is None:
        raise ValueError("POSTROAD_NATS_URL is not set: the pipeline reads from a NATS server")
    options: dict[str, Any] = {
        "url": settings.nats_url.reveal(),
        "credentials": settings.nats_credentials,
        "tlsCa": settings.nats_tls_ca,
        "tlsCert": settings.nats_tls_cert,
        "tlsKey": settings.nats_tls_key,
    }
    return {name: str(value) for name, value in options.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Engine:
    options: Mapping[str, str]

    def follow(self, spark: SparkSession, streams: Iterable[str], *, messages_max: int) -> DataFrame:
        """All messages of these streams from their beginning, as one streaming table. What retention has removed is left out."""
        frames = [
            spark.readStream.format("jetstream")
            .options(
                **self.options,
                stream=stream,
                startingPosition="earliest",
                failOnDataLoss="false",
                maxMessagesPerTrigger=str(messages_max),
                messagesPerPartition=str(_MESSAGES_PER_PARTITION),
            )
            .load()
            for stream in streams
        ]
        [together, *others] = frames
        for frame in others:
            together = together.unionByName(frame)
        return together

    def send(self, messages: DataFrame) -> None:
        """`subject message_id data`, each stored once within the engine's window for duplicates."""
        messages.write.format("jetstream").options(**self.options).mode("append").save()

    def tell(self, subject: str, body: Mapping[str, Any], message_id: str) -> None:
        options = write_options(self.options)
        with Client(options.connection) as client:
            headers = encode_headers(header_lines(None, message_id, None))
            message = Message(subject.encode(), headers, msgspec.json.encode(body))
            Publisher(client, 1).publish([message])

    def last_sequences(self, streams: Iterable[str]) -> dict[str, int]:
        """Raises JetStreamError when the engine cannot be reached, or has no such stream."""
        connection = write_options(self.options).connection

        def ask(client: Client) -> dict[str, int]:
            api = JetStreamApi(client, connection.api_prefix)
            return {stream: api.stream_info(stream).last for stream in streams}

        with Client(connection) as client:
            return client.with_retries(ask)


__all__ = ["Engine", "JetStreamError", "engine_options"]
