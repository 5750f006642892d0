"""A chat with rooms: a session per browser, one EventSource for all rooms. No message is lost on a reload or a network failure.

POSTROAD_KEY=… python examples/chat/serve.py        then open http://127.0.0.1:8089/ in two windows

The key stays on this server. Each browser has a session, whose id is in a cookie that scripts cannot read, and a stream token
that only permits reading this session's stream. A message is published once; Postroad copies it to every session in the room.
"""

import argparse
import os
import re
import time
import uuid
from collections import deque
from functools import partial
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec

from postroad.client import Postroad
from postroad.client.errors import PostroadError, SessionNotFound

URL = os.environ.get("POSTROAD_URL") or "http://127.0.0.1:8080"
PUBLIC_URL = os.environ.get("POSTROAD_PUBLIC_URL") or URL  # the URL for browsers
ROOMS = ("general", "random", "help")
HISTORY_MAX = 50
TEXT_MAX = 2000
NAME_MAX = 40
BODY_BYTES_MAX = 16 * 1024


class Chat:
    """The chat's use of Postroad. Thread-safe."""

    def __init__(self, postroad: Postroad, prefix: str) -> None:
        self._postroad, self._prefix = postroad, prefix
        for room in ROOMS:
            postroad.streams.create(self._stream(room), ttl_seconds=7 * 86_400)  # keeps an existing stream

    def join(self, session: str, rooms: list[str], unknown: list[str]) -> dict[str, Any]:
        """Subscribe the session to the rooms; return the URL and token for reading it.

        Includes the history of the rooms that are unknown to the page, or of all rooms if the session is new.
        """
        is_new, path = False, ""
        for room in rooms:
            done = self._postroad.sessions.subscribe(self._stream(room), session, envelope=True)
            is_new, path = is_new or done.is_new_session, done.session_stream_path
        token = self._postroad.tokens.create(f"stream/session:{session}").token
        # Read after subscribing, so that no message is missed. Messages in between arrive twice; the page removes them by id.
        history = {room: self._history(room) for room in rooms if is_new or room in unknown}
        return {"url": PUBLIC_URL + path, "token": token, "isNew": is_new, "prefix": self._prefix, "history": history}

    def _history(self, room: str) -> list[Any]:
        return [message.value for message in deque(self._postroad.streams.messages(self._stream(room)), maxlen=HISTORY_MAX)]

    def leave(self, session: str, room: str) -> None:
        self._postroad.sessions.unsubscribe(session, self._stream(room))

    def say(self, room: str, name: str, text: str) -> dict[str, Any]:
        said = {"id": str(uuid.uuid4()), "name": name, "text": text, "at": int(time.time() * 1000)}
        sent = self._postroad.sessions.publish(self._stream(room), said)
        return {"id": said["id"], "reached": sent.successes}

    def touch(self, session: str) -> None:
        self._postroad.sessions.touch(session)

    def _stream(self, room: str) -> str:
        return f"{self._prefix}{room}"


class Wrong(Exception):
    """The request of the browser is invalid."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, chat: Chat, *rest: Any) -> None:
        self._chat = chat
        super().__init__(*rest)

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/":
            self._answer(HTTPStatus.NOT_FOUND, {"error": "not found"})
            return
        page = (Path(__file__).parent / "index.html").read_bytes()
        self._send(HTTPStatus.OK, page, "text/html; charset=utf-8", None)

    def do_POST(self) -> None:
        try:
            body, known = self._body(), self._session()
            session = known or str(uuid.uuid4())
            answer = self._do(body, session)
            self._answer(HTTPStatus.OK, answer, session=session)
        except Wrong as fault:
            self._answer(HTTPStatus.BAD_REQUEST, {"error": str(fault)})
        except SessionNotFound:  # expired: the page joins again
            self._answer(HTTPStatus.GONE, {"error": "the session has ended"})
        except PostroadError as problem:
            self._answer(HTTPStatus.BAD_GATEWAY, {"error": problem.title})

    def _do(self, body: dict[str, Any], session: str) -> dict[str, Any]:
        match self.path:
            case "/join":
                rooms = _rooms(body, "rooms")
                if not rooms:
                    raise Wrong("join at least one room")
                return self._chat.join(session, rooms, _rooms(body, "unknown"))
            case "/leave":
                self._chat.leave(session, _room(body.get("room")))
            case "/touch":
                self._chat.touch(session)
            case "/say":
                room = _room(body.get("room"))
                return self._chat.say(room, _text(body, "name", NAME_MAX), _text(body, "text", TEXT_MAX))
            case _:
                raise Wrong("unknown path")
        return {}

    def _body(self) -> dict[str, Any]:
        """Accept only JSON, because a form on another site cannot send it."""
        length = self.headers.get("Content-Length") or ""
        if not length.isdigit() or int(length) > BODY_BYTES_MAX:
            self.close_connection = True
            raise Wrong("the body is too long or has no Content-Length")
        data = self.rfile.read(int(length))
        if self.headers.get_content_type() != "application/json":
            raise Wrong("send JSON")
        try:
            return msgspec.json.decode(data, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeDecodeError) as fault:
            raise Wrong("send a JSON object") from fault

    def _session(self) -> str | None:
        """The session id in the browser's cookie, a UUID; None without a valid cookie."""
        try:
            found = SimpleCookie(self.headers.get("Cookie", "")).get("chat")
        except CookieError:
            return None
        return found.value if found is not None and re.fullmatch(r"[0-9a-f-]{36}", found.value) else None

    def _answer(self, status: HTTPStatus, answer: dict[str, Any], *, session: str | None = None) -> None:
        self._send(status, msgspec.json.encode(answer), "application/json", session)

    def _send(self, status: HTTPStatus, body: bytes, media: str, session: str | None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", media)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        if session is not None:  # add `Secure` if served over https
            self.send_header("Set-Cookie", f"chat={session}; Path=/; HttpOnly; SameSite=Strict; Max-Age=604800")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def _room(room: object) -> str:
    if room not in ROOMS:
        raise Wrong("no such room")
    return str(room)


def _rooms(body: dict[str, Any], name: str) -> list[str]:
    rooms = body.get(name)
    if not isinstance(rooms, list):
        raise Wrong(f"{name} must be a list of rooms")
    return [_room(room) for room in rooms]


def _text(body: dict[str, Any], name: str, chars_max: int) -> str:
    text = body.get(name)
    if not isinstance(text, str) or not text.strip() or len(text) > chars_max:
        raise Wrong(f"{name} must be a string of 1 to {chars_max} characters")
    return text.strip()


def main() -> None:
    options = argparse.ArgumentParser(description="Serve a chat.")
    options.add_argument("--port", type=int, default=8089)
    options.add_argument("--prefix", default="examples/chat/", help="prefix of the rooms' stream ids")
    chosen = options.parse_args()
    with Postroad(URL) as postroad:
        server = ThreadingHTTPServer(("127.0.0.1", chosen.port), partial(Handler, Chat(postroad, chosen.prefix)))
        print(f"open http://127.0.0.1:{server.server_port}/ (Ctrl-C to stop)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            server.server_close()


if __name__ == "__main__":
    main()
