"""Secrets at rest, and what a rotation of the platform key leaves intact."""

import base64
import itertools

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.access.control import SECRETS, STREAM, WHOAMI, status_of
from tests.gateway import Gateway, Tenant, gateway_settings, running_gateway
from tests.servers import Server

from postroad.crypto.secret_encryption import DecryptionFailed, SecretCipher
from postroad.settings import Secret

OLD, NEW = "the platform key of last year, for tests", "the platform key of this year, for tests"


def opens(vault: SecretCipher, owner: str, locked: str) -> bool:
    try:
        vault.decrypt(owner, locked)
    except DecryptionFailed:
        return False
    return True


@given(st.text(max_size=100), st.text(st.characters(exclude_categories=["Cs"]), max_size=100))
def test_what_was_locked_opens_for_its_owner(owner: str, secret: str) -> None:
    owner = owner.encode("utf-8", "replace").decode()
    assert SecretCipher((OLD,)).decrypt(owner, SecretCipher((OLD,)).encrypt(owner, secret)) == secret


def test_it_opens_for_nobody_else_and_not_with_another_key() -> None:
    locked = SecretCipher((OLD,)).encrypt("jwt-secret acme 1", "s")
    assert not opens(SecretCipher((OLD,)), "jwt-secret acme 2", locked)
    assert not opens(SecretCipher((OLD,)), "jwt-secret other 1", locked)
    assert not opens(SecretCipher((NEW,)), "jwt-secret acme 1", locked)


def test_the_same_secret_is_locked_differently_each_time() -> None:
    vault = SecretCipher((OLD,))
    assert vault.encrypt("o", "secret") != vault.encrypt("o", "secret")


@given(st.data())
def test_any_byte_that_was_altered_keeps_it_locked(data: st.DataObject) -> None:
    raw = bytearray(base64.urlsafe_b64decode(SecretCipher((OLD,)).encrypt("o", "secret")))
    place = data.draw(st.integers(0, len(raw) - 1))
    raw[place] ^= data.draw(st.integers(1, 255))
    assert not opens(SecretCipher((OLD,)), "o", base64.urlsafe_b64encode(bytes(raw)).decode())


@pytest.mark.parametrize("text", ["", "x", "AAAA", "\xe9", "A" * 100, "=" * 8])
def test_other_texts_do_not_open(text: str) -> None:
    assert not opens(SecretCipher((OLD,)), "o", text)


def test_after_a_rotation_both_keys_open_and_the_new_one_locks() -> None:
    old, both, new = SecretCipher((OLD,)), SecretCipher((NEW, OLD)), SecretCipher((NEW,))
    locked = old.encrypt("o", "s")
    assert opens(both, "o", locked) and not both.uses_newest_key("o", locked) and old.uses_newest_key("o", locked)
    again = both.encrypt("o", "s")
    assert opens(new, "o", again) and both.uses_newest_key("o", again) and not opens(old, "o", again)


def test_two_keys_whose_numbers_meet_are_told_apart() -> None:
    """Else what the old one locked would never be locked anew, and be lost with it."""
    old = SecretCipher((OLD,))
    twin = next(one for number in itertools.count() if SecretCipher((one := f"{number:032}",))._keys[0][0] == old._keys[0][0])
    both = SecretCipher((twin, OLD))
    locked = old.encrypt("o", "s")
    assert both.decrypt("o", locked) == "s"
    assert not both.uses_newest_key("o", locked)


def test_what_an_earlier_version_has_locked_opens() -> None:
    locked = "YgABAgMEBQYHCAkKC0UKwwMF6i-n2bmA_bkU1AxUqJ_j2A=="
    assert SecretCipher((OLD,)).decrypt("jwt-secret acme 1", locked) == "plain"


async def test_a_rotation_of_the_platform_key_breaks_nothing_that_is_out(own_server: Server) -> None:
    """New first, old second; once the control role has locked the secrets anew, the old one can go."""

    async with running_gateway(gateway_settings(own_server.url, platform_key=Secret(OLD))) as gateway:
        tenant = await gateway.tenant()
        secret = (await tenant.client.post(SECRETS, {"name": "s"})).ok(201)["secret"]
        token = (await tenant.client.post("/v1/tokens", {"resource": "telemetry"})).ok(201)["token"]
        queue = await tenant.queue()
        await tenant.publish(queue, 1)
        [message] = await tenant.pull(queue)
        text = jwt.encode({"sub": "ada", "scope": "read", "exp": gateway.clock() // 1000 + 600}, secret, "HS256")

    async def user_status(gateway: Gateway) -> int:
        return await status_of(gateway.with_key(text).with_headers(**{"X-Postroad-Tenant": tenant.id}), WHOAMI)

    async with running_gateway(gateway_settings(own_server.url, platform_key=Secret(NEW))) as gateway:
        assert await user_status(gateway) == 401, "the old key is needed"

    async with running_gateway(gateway_settings(own_server.url, platform_key=Secret(f"{NEW},{OLD}"))) as gateway:
        assert await user_status(gateway) == 200
        async with gateway.nobody.events(f"{STREAM}?bearer={token}"):
            pass
        mine: Tenant = gateway.seen_by(tenant)
        assert (await mine.ack(queue, message["receiptId"])).ok() == {"ok": True}
        assert await gateway.node.access.secrets.reencrypt() == 1
        assert await gateway.node.access.secrets.reencrypt() == 0
        assert await user_status(gateway) == 200

    async with running_gateway(gateway_settings(own_server.url, platform_key=Secret(NEW))) as gateway:
        assert await user_status(gateway) == 200
        (await gateway.nobody.get(f"{STREAM}?bearer={token}")).problem(401, "unauthenticated")
