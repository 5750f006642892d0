"""A tenant by invite, a limited key, its rotation, and who did all that, with the SDK.

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

        print("what was done in", name)
        for entry in platform.audit.list(tenant=name, page_size=50):
            print(" ", entry.action, "of", entry.target, "by", entry.actor_key_id)
        assert worker_id in {entry.target for entry in platform.audit.list(tenant=name, action="key.*")}
        print(platform.tenants.delete(name).state, name)


def claim(code: str) -> str:
    """The invited one has a code and no key yet. The key that comes back is shown this once: keep it."""
    with Postroad(anonymous=True) as nobody:
        made = nobody.invites.claim(code, key_name="first key")
    print("claimed; the first key is", made.record.id)
    return made.key


def limited_key(first_key: str) -> str:
    """A worker needs no more than to consume from its queues."""
    with Postroad(key=first_key) as owner:
        owner.queues.put("parcels-in")
        made = owner.keys.create("worker", scopes=["consume"], allowed_queues=["parcels-*"])
        rotated = owner.keys.rotate(made.record.id, grace_seconds=600)
        print("the worker's key was rotated; the old text is good until", rotated.record.rotated_until)

    for text in (made.key, rotated.key):  # the old one until its grace is over, the new one from now on
        with Postroad(key=text) as worker:
            worker.queues.pull("parcels-in")
            try:
                worker.queues.publish("parcels-in", {"parcel": 1})
            except Forbidden as refused:
                print("refused:", refused.detail)
    return made.record.id


if __name__ == "__main__":
    main()
