"""nchan in nginx (both Debian): a message posted to a channel is sent to all its SSE readers, from memory."""

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks import streams
from benchmarks.peers.peer import Request, Unavailable, debian_version, folder, process, wait_for
from postroad.runtime.embedded_server import free_port

_MODULE = Path("/usr/lib/nginx/modules/ngx_nchan_module.so")
_CONFIGURATION = """
load_module {module};
user root;
worker_processes 1;
daemon off;
pid {home}/nginx.pid;
error_log {home}/error.log error;
events {{ worker_connections 8192; }}
http {{
  access_log off;
  client_body_temp_path {home}/body;
  proxy_temp_path {home}/proxy;
  fastcgi_temp_path {home}/fastcgi;
  uwsgi_temp_path {home}/uwsgi;
  scgi_temp_path {home}/scgi;
  keepalive_requests 1000000;
  nchan_shared_memory_size 256M;
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location = /ready {{ return 200; }}
    location ~ ^/publish/([a-z0-9-]+)$ {{
      nchan_publisher;
      nchan_channel_id $1;
      nchan_message_buffer_length 10000;
      nchan_message_timeout 10m;
    }}
    location ~ ^/socket/([a-z0-9-]+)$ {{
      nchan_subscriber websocket;
      nchan_channel_id $1;
      nchan_subscriber_first_message oldest;
    }}
    location ~ ^/listen/([a-z0-9-]+)$ {{
      nchan_subscriber eventsource;
      nchan_channel_id $1;
      nchan_subscriber_first_message oldest;
    }}
  }}
}}
"""


@dataclass(frozen=True, slots=True)
class Channels(streams.Peer):
    def path(self, name: str) -> str:
        return f"/publish/{name}"

    def live_path(self, name: str) -> str:
        return f"/listen/{name}"

    def create(self, *names: str) -> None:
        """A channel exists once it has a reader."""

    def order(self, name: str, messages: int) -> list[int]:
        """The messages in the order sent: one writer waits for each response."""
        return list(range(messages))


@contextlib.contextmanager
def running() -> Iterator[Channels]:
    nginx = shutil.which("nginx") or "/usr/sbin/nginx"
    if not Path(nginx).exists() or not _MODULE.exists():
        raise Unavailable("nginx or its module nchan is not installed")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with folder("nchan") as home:
        (home / "nginx.conf").write_text(_CONFIGURATION.format(module=_MODULE, home=home, port=port))
        with process([nginx, "-p", str(home), "-c", str(home / "nginx.conf")], home) as pid:
            wait_for(url, Request("GET", "/ready"))
            yield Channels("nchan", url, streams.JSON, pid)


SETUP = "nchan"


def version() -> str:
    return f"{debian_version('libnginx-mod-nchan')}, nginx {debian_version('nginx')}"
