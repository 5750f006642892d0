"""Secrets at rest, and the rotation of the platform key."""

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


def can_decrypt(cipher: SecretCipher, owner: str, encrypted: str) -> bool:
    try:
        cipher.decrypt(owner, encrypted)
    except DecryptionFailed:
        return False
    return True


@given(st.text(max_size=100), st.text(st.characters(exclude_categories=["Cs"]), max_size=100))
def test_an_encrypted_secret_is_decrypted_for_its_owner(owner: str, secret: str) -> None:
    owner = owner.encode("utf-8", "replace").decode()
    assert SecretCipher((OLD,)).decrypt(owner, SecretCipher((OLD,)).encrypt(owner, secret)) == secret


def test_another_owner_or_key_cannot_decrypt() -> None:
    encrypted = SecretCipher((OLD,)).encrypt("jwt-secret acme 1", "s")
    assert not can_decrypt(SecretCipher((OLD,)), "jwt-secret acme 2", encrypted)
    assert not can_decrypt(SecretCipher((OLD,)), "jwt-secret other 1", encrypted)
    assert not can_decrypt(SecretCipher((NEW,)), "jwt-secret acme 1", encrypted)


def test_a_secret_is_encrypted_differently_each_time() -> None:
    cipher = SecretCipher((OLD,))
    assert cipher.encrypt("o", "secret") != cipher.encrypt("o", "secret")


@given(st.data())
def test_an_altered_byte_prevents_decryption(data: st.DataObject) -> None:
    raw = bytearray(base64.urlsafe_b64decode(SecretCipher((OLD,)).encrypt("o", "secret")))
    place = data.draw(st.integers(0, len(raw) - 1))
    raw[place] ^= data.draw(st.integers(1, 255))
    assert not can_decrypt(SecretCipher((OLD,)), "o", base64.urlsafe_b64encode(bytes(raw)).decode())


@pytest.mark.parametrize("text", ["", "x", "AAAA", "\xe9", "A" * 100, "=" * 8])
def test_other_texts_cannot_be_decrypted(text: str) -> None:
    assert not can_decrypt(SecretCipher((OLD,)), "o", text)


def test_after_a_rotation_both_keys_decrypt_and_the_new_one_encrypts() -> None:
    old, both, new = SecretCipher((OLD,)), SecretCipher((NEW, OLD)), SecretCipher((NEW,))
    encrypted = old.encrypt("o", "s")
    assert can_decrypt(both, "o", encrypted) and not both.uses_newest_key("o", encrypted) and old.uses_newest_key("o", encrypted)
    again = both.encrypt("o", "s")
    assert can_decrypt(new, "o", again) and both.uses_newest_key("o", again) and not can_decrypt(old, "o", again)


def test_two_keys_of_the_same_number_are_distinguished() -> None:
    """Otherwise secrets of the old key would not be re-encrypted, and be lost with it."""
    old = SecretCipher((OLD,))
    twin = next(one for number in itertools.count() if SecretCipher((one := f"{number:032}",))._keys[0][0] == old._keys[0][0])
    both = SecretCipher((twin, OLD))
    encrypted = old.encrypt("o", "s")
    assert both.decrypt("o", encrypted) == "s"
    assert not both.uses_newest_key("o", encrypted)


def test_a_secret_encrypted_by_an_earlier_version_is_decrypted() -> None:
    encrypted = "YgABAgMEBQYHCAkKC0UKwwMF6i-n2bmA_bkU1AxUqJ_j2A=="
    assert SecretCipher((OLD,)).decrypt("jwt-secret acme 1", encrypted) == "plain"


async def test_credentials_stay_valid_while_the_platform_key_is_rotated(own_server: Server) -> None:
    """New key first, old key second; the old one can be removed once the control role has re-encrypted the secrets."""

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
        async with gateway.anonymous.events(f"{STREAM}?bearer={token}"):
            pass
        mine: Tenant = gateway.seen_by(tenant)
        assert (await mine.ack(queue, message["receiptId"])).ok() == {"ok": True}
        assert await gateway.node.access.secrets.reencrypt() == 1
        assert await gateway.node.access.secrets.reencrypt() == 0
        assert await user_status(gateway) == 200

    async with running_gateway(gateway_settings(own_server.url, platform_key=Secret(NEW))) as gateway:
        assert await user_status(gateway) == 200
        (await gateway.anonymous.get(f"{STREAM}?bearer={token}")).problem(401, "unauthenticated")
