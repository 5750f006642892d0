"""Sign in to the console without showing a key, as `postroad console` does: a link that works once becomes a cookie. It acts as
the key and ends when you sign out. With a platform key it then prints where streams are.

POSTROAD_KEY=… python examples/console/sign_in.py
"""

import os

import httpx

from postroad.client import Postroad

URL = os.environ.get("POSTROAD_URL", "http://127.0.0.1:8080")
SAME_ORIGIN = {"Sec-Fetch-Site": "same-origin"}  # a browser sends it; without it the cookie changes nothing


def main() -> None:
    with Postroad() as postroad, httpx.Client(base_url=URL, headers=SAME_ORIGIN) as browser:
        link = postroad.web_sessions.create_link(expires_in_seconds=60)
        code = link.url.partition("access=")[2]
        signed_in = browser.post("/v1/session", json={"access": code})
        print("signed in as", signed_in.json()["keyName"], "with HttpOnly:", "HttpOnly" in signed_in.headers["set-cookie"])
        print("the link again:", browser.post("/v1/session", json={"access": code}).status_code)
        print("queues with the cookie:", browser.get("/v1/queues").status_code)
        forged = browser.put("/v1/queues/forged", json={}, headers={"Sec-Fetch-Site": "cross-site"})
        print("a change from another site:", forged.status_code)
        browser.delete("/v1/session")
        print("after signing out:", browser.get("/v1/queues").status_code)
        if postroad.keys.whoami().platform:
            topology = postroad.live_state.topology()
            print(f"{len(topology.servers)} server, {topology.streams_total} streams, {topology.without_quorum} without a quorum")


if __name__ == "__main__":
    main()
