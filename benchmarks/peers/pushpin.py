"""pushpin (Debian) in front of an origin (grip_origin.py): an item posted to its control port goes to all of a channel."""

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.peers.peer import ROOT, Request, Unavailable, debian_version, encoded, folder, process, wait_for
from postroad.runtime.embedded_server import free_port

SETUP = "pushpin"
version = partial(debian_version, "pushpin")
_INTERNAL = Path("/usr/lib/pushpin/internal.conf")
_CONFIGURATION = """
[global]
include={home}/internal.conf
rundir={home}
ipc_prefix=pushpin-
port_offset=0
stats_connection_ttl=120

[runner]
services=condure,pushpin-proxy,pushpin-handler
http_port={port}
logdir={home}
log_level=1
client_buffer_size=8192
client_maxconn=50000
condure_bin=condure

[proxy]
routesfile={home}/routes
debug=false
auto_cross_origin=false
accept_x_forwarded_protocol=false
set_x_forwarded_protocol=proto-only
accept_pushpin_route=false
sig_iss=pushpin
sig_key=changeme
updates_check=off

[handler]
push_in_spec=ipc://{home}/push-in
push_in_sub_specs=ipc://{home}/push-in-sub
push_in_sub_connect=false
push_in_http_addr=127.0.0.1
push_in_http_port={control}
push_in_http_max_headers_size=10000
push_in_http_max_body_size=1000000
stats_spec=ipc://{home}/stats
command_spec=ipc://{home}/command
message_rate=1000000
message_hwm=1000000
message_wait=5000
id_cache_ttl=60
connection_subscription_max=20
subscription_linger=60
stats_subscription_ttl=60
stats_report_interval=10
stats_format=tnetstring
"""
_ZURL = """
[General]
instance_id=
in_spec=ipc://{home}/zurl-in
in_stream_spec=ipc://{home}/zurl-in-stream
out_spec=ipc://{home}/zurl-out
in_req_spec=
defpolicy=allow
allow=
deny=
max_open_requests=5000
buffer_size=200000
timeout=600
in_hwm=10000
out_hwm=10000
"""


@dataclass(frozen=True, slots=True)
class Channels:
    url: str
    control: str
    pid: int

    def pids(self) -> list[int]:
        """The services of pushpin, without the origin and the client that asks it."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return [int(pid) for pid in children]


def event_item(body: str, channel: str) -> bytes:
    return _item(channel, "http-stream", f"event: message\ndata: {body}\n\n")


def socket_item(body: str, channel: str) -> bytes:
    return _item(channel, "ws-message", body)


def _item(channel: str, form: str, content: str) -> bytes:
    return encoded({"items": [{"channel": channel, "formats": {form: {"content": content}}}]}).encode()


@contextlib.contextmanager
def running() -> Iterator[Channels]:
    program, zurl = Path("/usr/bin/pushpin"), Path("/usr/bin/zurl")
    if not (program.exists() and zurl.exists() and Path("/usr/bin/condure").exists()):
        raise Unavailable("pushpin, condure or zurl is not installed")
    port, control, origin = free_port(), free_port(), free_port()
    with contextlib.ExitStack() as stack:
        home = stack.enter_context(folder("pushpin"))
        values = {"home": home, "port": port, "control": control}
        (home / "internal.conf").write_text(_INTERNAL.read_text().replace("/var/run/zurl", str(home)))
        (home / "pushpin.conf").write_text(_CONFIGURATION.format(**values))
        (home / "zurl.conf").write_text(_ZURL.format(**values))
        (home / "routes").write_text(f"* 127.0.0.1:{origin},over_http\n")
        command = [sys.executable, str(ROOT / "benchmarks" / "peers" / "grip_origin.py"), str(origin)]
        stack.enter_context(process(command, home))
        stack.enter_context(process([zurl, f"--config={home}/zurl.conf"], home))
        pid = stack.enter_context(process([program, f"--config={home}/pushpin.conf"], home))
        url = f"http://127.0.0.1:{port}"
        wait_for(url, Request("GET", "/ready"))
        yield Channels(url, f"http://127.0.0.1:{control}/publish/", pid)
