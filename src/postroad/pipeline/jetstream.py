"""The pipeline's access to JetStream: connection options, the state of streams, publishing."""

import base64
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from postroad.pipeline.messages import OutgoingMessage
from postroad.settings import Settings
from spark_jetstream.api import JetStreamApi, StreamInfo
from spark_jetstream.client import Client
from spark_jetstream.errors import JetStreamError, Rejected
from spark_jetstream.filesystem_sync import sync_filesystem
from spark_jetstream.options import write_options
from spark_jetstream.protocol import encode_headers
from spark_jetstream.publisher import Message, Publisher
from spark_jetstream.writer import header_lines


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

    def write(self, messages: DataFrame) -> None:
        """Publish rows of `subject message_id data`. The engine stores each message id once within its duplicate window."""
        spark: Any = messages.sparkSession
        spark._jvm.SparkSession.setActiveSession(spark._jsparkSession)  # Spark looks for the sink in it; a new thread has none
        messages.write.format("jetstream").options(**self.options).mode("append").save()
        self._sync()

    def publish(self, messages: Sequence[OutgoingMessage]) -> None:
        """Publish messages. The engine stores each message id once within its duplicate window. Raises JetStreamError."""
        if not messages:
            return
        options = write_options(self.options)
        with Client(options.connection) as client:
            Publisher(client, options.max_pending).publish(
                Message(one.subject.encode(), encode_headers(header_lines(None, one.message_id, None)), one.data)
                for one in messages
            )
        self._sync()

    def _sync(self) -> None:
        if self.sync_directory is not None:
            sync_filesystem(self.sync_directory)

    def streams(self, names: Iterable[str]) -> dict[str, StreamInfo]:
        """The streams that exist. Raises JetStreamError if the engine cannot be reached."""
        connection = write_options(self.options).connection

        def read(client: Client) -> dict[str, StreamInfo]:
            api = JetStreamApi(client, connection.api_prefix)
            found = {}
            for name in names:
                with contextlib.suppress(Rejected):
                    found[name] = api.stream_info(name)
            return found

        with Client(connection) as client:
            return client.with_retries(read)

    def read_keys(self, bucket: str, keys: Iterable[str]) -> dict[str, bytes]:
        """The values of these keys of a KV bucket; without keys that it lacks. Raises JetStreamError."""
        connection = write_options(self.options).connection

        def read(client: Client) -> dict[str, bytes]:
            api = JetStreamApi(client, connection.api_prefix)
            found = {}
            for key in keys:
                with contextlib.suppress(Rejected):
                    request = {"last_by_subj": f"$KV.{bucket}.{key}"}
                    message = api.call(f"STREAM.MSG.GET.KV_{bucket}", request, f"bucket {bucket!r}")["message"]
                    found[key] = base64.b64decode(message.get("data", ""))
            return found

        with Client(connection) as client:
            return client.with_retries(read)

    def sync(self) -> None:
        """Make sure that the messages which the streams have now are not lost any more: the lake keeps their positions."""
        self._sync()


__all__ = ["Engine", "JetStreamError", "engine_options", "open_engine"]
