"""The pipeline's access to JetStream: connection options, streams as Spark tables, publishing."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession

from postroad.settings import Settings
from spark_jetstream.api import JetStreamApi
from spark_jetstream.client import Client
from spark_jetstream.errors import JetStreamError
from spark_jetstream.filesystem_sync import sync_filesystem
from spark_jetstream.options import write_options
from spark_jetstream.protocol import encode_headers
from spark_jetstream.publisher import Message, Publisher
from spark_jetstream.writer import header_lines

_MESSAGES_PER_PARTITION = 1_000


def engine_options(settings: Settings) -> dict[str, str]:
    """Connection options of the data source. Raises ValueError if the settings name no server."""
    if settings.nats_url is None:
        raise ValueError("POSTROAD_NATS_URL is not set: the pipeline needs a NATS server")
    options: dict[str, Any] = {
        "url": settings.nats_url.reveal(),
        "credentials": settings.nats_credentials,
        "nkey": settings.nats_nkey,
        "tlsCa": settings.nats_tls_ca,
        "tlsCert": settings.nats_tls_cert,
        "tlsKey": settings.nats_tls_key,
    }
    return {name: str(value) for name, value in options.items() if value is not None}


def open_engine(settings: Settings) -> "Engine":
    """Raises ValueError if the settings name no server."""
    return Engine(engine_options(settings), str(settings.store_dir) if settings.has_group_sync else None)


@dataclass(frozen=True, slots=True)
class Engine:
    """`sync_directory`: of the embedded server's store, if its writes must be synced here."""

    options: Mapping[str, str]
    sync_directory: str | None = None

    def read_stream(self, spark: SparkSession, streams: Iterable[str], *, messages_max: int) -> DataFrame:
        """All messages of these streams as one streaming table, without those that retention has removed."""
        sync = {} if self.sync_directory is None else {"syncDirectory": self.sync_directory}
        frames = [
            spark.readStream.format("jetstream")
            .options(
                **self.options,
                **sync,
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

    def write(self, messages: DataFrame) -> None:
        """Publish rows of `subject message_id data`. The engine stores each message id once within its duplicate window."""
        messages.write.format("jetstream").options(**self.options).mode("append").save()
        self._sync()

    def publish(self, subject: str, body: msgspec.Struct, message_id: str) -> None:
        """Publish one message. Raises JetStreamError."""
        options = write_options(self.options)
        with Client(options.connection) as client:
            headers = encode_headers(header_lines(None, message_id, None))
            message = Message(subject.encode(), headers, msgspec.json.encode(body))
            Publisher(client, 1).publish([message])
        self._sync()

    def _sync(self) -> None:
        if self.sync_directory is not None:
            sync_filesystem(self.sync_directory)

    def last_sequences(self, streams: Iterable[str]) -> dict[str, int]:
        """Raises JetStreamError if the engine cannot be reached, or a stream does not exist."""
        connection = write_options(self.options).connection

        def read(client: Client) -> dict[str, int]:
            api = JetStreamApi(client, connection.api_prefix)
            return {stream: api.stream_info(stream).last for stream in streams}

        with Client(connection) as client:
            return client.with_retries(read)


__all__ = ["Engine", "JetStreamError", "engine_options", "open_engine"]
