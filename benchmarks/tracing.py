"""Cost of tracing: processor time of the worker per publish, without tracing and with a tenth of the requests sampled.

    .venv/bin/python -m benchmarks.tracing [--rounds 12] [--seconds 1] [--share 0.1] [--connections 64] [--sync 2s]

Two installations of this checkout run at the same time; one exports its spans to a collector in this process. They are loaded in
turns, a second each, and swap their order after each round. The ratio is the median over neighbouring rounds.

What tracing costs while it is off shows a comparison with an earlier checkout: `python -m benchmarks.checkouts OTHER`.
"""

import argparse
import statistics
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from benchmarks.checkouts import Side
from benchmarks.compare import published
from benchmarks.harness import postroad, table
from benchmarks.peers.postroad import queue_of

_WARM_SECONDS = 2.0


@contextmanager
def collector(bodies: list[bytes]) -> Iterator[str]:
    """A collector that accepts everything; its URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_arguments: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--share", default="0.1", help="of the requests that are sampled")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--sync", default="2s")
    chosen = parser.parse_args()
    bodies: list[bytes] = []
    with ExitStack() as stack:
        start = partial(postroad, POSTROAD_SYNC=chosen.sync)
        traced = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": stack.enter_context(collector(bodies)),
            "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
            "OTEL_TRACES_SAMPLER_ARG": chosen.share,
        }
        off, on = (Side(server := stack.enter_context(start(**environment)), queue_of(server)) for environment in ({}, traced))
        for side in (off, on):
            published(side.queue, chosen.connections, _WARM_SECONDS)
        for number in range(chosen.rounds):
            for side in (off, on) if number % 2 else (on, off):
                side.run("publish", chosen.connections, chosen.seconds)
    without, sampled = off.costs["publish", "worker"], on.costs["publish", "worker"]
    ratios = sorted(two / one for one, two in zip(without, sampled, strict=True))
    print(
        table(
            ["rounds", "µs off", f"µs with {chosen.share}", "ratio", "lowest", "highest"],
            [
                [
                    str(chosen.rounds),
                    f"{statistics.median(without):.1f}",
                    f"{statistics.median(sampled):.1f}",
                    f"{statistics.median(ratios):.3f}",
                    f"{ratios[0]:.3f}",
                    f"{ratios[-1]:.3f}",
                ]
            ],
        )
    )
    rates = [statistics.median(side.rates["publish"]) for side in (off, on)]
    print(f"{rates[0]:,.0f} publishes per second off, {rates[1]:,.0f} on; {_spans(bodies):,} spans in {len(bodies):,} requests")


def _spans(bodies: list[bytes]) -> int:
    requests = [ExportTraceServiceRequest.FromString(body) for body in bodies]
    return sum(len(scope.spans) for request in requests for one in request.resource_spans for scope in one.scope_spans)


if __name__ == "__main__":
    main()
