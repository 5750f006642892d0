"""Create a tenant by invite and a restricted key, rotate the key, and print the audit log.

POSTROAD_KEY=<a platform key> python examples/access.py
"""

import uuid

from postroad.client import Postroad
from postroad.client.errors import Forbidden


def main() -> None:
    name = f"parcels-{uuid.uuid4().hex[:8]}"
    with Postroad() as platform:
        invite = platform.invites.create(tenant=name, note="the parcel team", expires_in_seconds=3600)
        print("invited", name)

        first_key = claim(invite.code)
        worker_id = limited_key(first_key)

        print("audit log of", name)
        for entry in platform.audit.list(tenant=name, page_size=50):
            print(" ", entry.action, "of", entry.target, "by", entry.actor_key_id)
        assert worker_id in {entry.target for entry in platform.audit.list(tenant=name, action="key.*")}
        print(platform.tenants.delete(name).state, name)


def claim(code: str) -> str:
    """Claim the invite without a key. The returned key is shown only once: store it."""
    with Postroad(anonymous=True) as anonymous:
        made = anonymous.invites.claim(code, key_name="first key")
    print("claimed; the first key is", made.record.id)
    return made.key


def limited_key(first_key: str) -> str:
    """Create and rotate a key that may only consume from the worker's queues."""
    with Postroad(key=first_key) as owner:
        owner.queues.put("parcels-in")
        made = owner.keys.create("worker", scopes=["consume"], allowed_queues=["parcels-*"])
        rotated = owner.keys.rotate(made.record.id, grace_seconds=600)
        print("the worker's key was rotated; the old secret is valid until", rotated.record.rotated_until)

    for text in (made.key, rotated.key):  # during the grace period both are valid
        with Postroad(key=text) as worker:
            worker.queues.pull("parcels-in")
            try:
                worker.queues.publish("parcels-in", {"parcel": 1})
            except Forbidden as refused:
                print("refused:", refused.detail)
    return made.record.id


if __name__ == "__main__":
    main()
