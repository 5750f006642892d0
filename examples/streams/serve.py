"""A page that follows a durable stream, and a producer that appends to it. A reload neither loses nor repeats a message.

POSTROAD_KEY=… python examples/streams/serve.py        then open http://127.0.0.1:8088/

The key stays on this server. The page gets a stream token that permits reading this stream for an hour, and requests a new one
after it has expired.
"""

import argparse
import os
import threading
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec

from postroad.client import Postroad

STREAM = "examples/ticker"
URL = os.environ.get("POSTROAD_URL") or "http://127.0.0.1:8080"


def main() -> None:
    options = argparse.ArgumentParser(description="Serve a page that follows a durable stream.")
    options.add_argument("--port", type=int, default=8088)
    options.add_argument("--every", type=float, default=1.0, help="seconds between messages")
    chosen = options.parse_args()
    with Postroad(URL) as postroad:
        postroad.streams.create(STREAM, ttl_seconds=86_400)  # keeps an existing stream
        server = ThreadingHTTPServer(("127.0.0.1", chosen.port), partial(Page, postroad))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(f"open http://127.0.0.1:{server.server_port}/ (Ctrl-C to stop)", flush=True)
        try:
            tick(postroad, chosen.every)
        except KeyboardInterrupt:
            server.shutdown()


def tick(postroad: Postroad, every: float) -> None:
    """Append increasing numbers, continuing from the last one. Each start uses a higher epoch, which fences older processes."""
    number = 0
    for message in postroad.streams.messages(STREAM):
        number = message.value["number"]
    producer = postroad.streams.producer(STREAM, "ticker", epoch=int(time.time()))
    while True:
        number += 1
        producer.append({"number": number, "at": time.strftime("%H:%M:%S")})
        time.sleep(every)


class Page(SimpleHTTPRequestHandler):
    """Serves the files of this directory, and `stream.json`: the URL of the stream and a token for reading it."""

    def __init__(self, postroad: Postroad, *rest: object) -> None:
        self._postroad = postroad
        super().__init__(*rest, directory=str(Path(__file__).parent))  # type: ignore[arg-type]

    def do_GET(self) -> None:
        if self.path != "/stream.json":
            super().do_GET()
            return
        token = self._postroad.tokens.create(f"stream/{STREAM}").token
        answer = msgspec.json.encode({"url": f"{URL}/v1/stream/{STREAM}", "token": token})
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    main()
