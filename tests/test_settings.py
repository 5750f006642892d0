import dataclasses
import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.access.settings import AccessSettings
from postroad.governance.settings import GovernanceSettings
from postroad.queues.settings import QueuesSettings
from postroad.settings import Secret, Settings, SettingsInvalid, env_name, load_settings, settings_table

DOCS = Path(__file__).parent.parent / "docs" / "settings.md"
KEY = "k" * 32


def faults(environ: dict[str, str], overrides: dict[str, object] | None = None) -> list[str]:
    with pytest.raises(SettingsInvalid) as invalid:
        load_settings(environ, overrides)
    return str(invalid.value).split("\n")


def config(tmp_path: Path, text: str) -> dict[str, str]:
    path = tmp_path / "postroad.toml"
    path.write_text(text)
    return {"POSTROAD_CONFIG": str(path)}


# Where settings come from


def test_without_anything_there_are_the_defaults() -> None:
    assert load_settings({}) == Settings()
    assert load_settings({"PATH": "/bin", "HOME": "/"}) == Settings()


def test_the_environment_is_read() -> None:
    settings = load_settings({"POSTROAD_PORT": "9000", "POSTROAD_HOST": "0.0.0.0", "POSTROAD_DATA_DIR": "/data"})
    assert (settings.port, settings.host, settings.data_dir) == (9000, "0.0.0.0", Path("/data"))


def test_the_file_is_read_and_the_environment_and_the_command_line_win(tmp_path: Path) -> None:
    environ = config(tmp_path, 'port = 1\nworkers = 2\nsync = "2s"\naccess_log = true\nengine_timeout = 3\n')
    settings = load_settings({**environ, "POSTROAD_PORT": "3", "POSTROAD_WORKERS": "4"}, {"port": 5, "host": None})
    assert (settings.port, settings.workers, settings.sync) == (5, 4, "2s")
    assert settings.access_log is True
    assert settings.engine_timeout == 3.0 and isinstance(settings.engine_timeout, float)
    assert settings.host == "127.0.0.1", "an option that is not given does not count"


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().port = 1  # type: ignore[misc]


# Types


@pytest.mark.parametrize(
    ("text", "expected"), [("1", True), ("true", True), ("YES", True), ("on", True), ("0", False), ("No", False)]
)
def test_a_switch_has_many_words(text: str, expected: bool) -> None:
    assert load_settings({"POSTROAD_ACCESS_LOG": text}).access_log is expected


def test_an_empty_text_is_nothing_where_nothing_is_allowed() -> None:
    settings = load_settings({"POSTROAD_NATS_URL": "", "POSTROAD_METRICS_DIR": "", "POSTROAD_CORS_ORIGIN": ""})
    assert (settings.nats_url, settings.metrics_dir, settings.cors_origin) == (None, None, "")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("PORT", "many"),
        ("PORT", "1.5"),
        ("PORT", "-1"),
        ("PORT", "65536"),
        ("PORT", ""),
        ("WORKERS", "0"),
        ("WORKERS", "65"),
        ("REPLICAS", "2"),
        ("SYNC", "sometimes"),
        ("SYNC", "0s"),
        ("ENGINE_TIMEOUT", "0"),
        ("ENGINE_TIMEOUT", "nan"),
        ("ENGINE_TIMEOUT", "soon"),
        ("ACCESS_LOG", "perhaps"),
        ("LOG_LEVEL", "loud"),
        ("PLATFORM_KEY", "short"),
        ("PLATFORM_KEY", f"{KEY},short"),
        ("ENCRYPTION_KEY", "short"),
        ("BODY_BYTES_MAX", "0"),
        ("MESSAGE_BYTES_MAX", str(8 * 1024 * 1024)),
        ("BATCH_MESSAGES_MAX", "1001"),
        ("PULL_MESSAGES_MAX", "1001"),
        ("IDEMPOTENCY_TTL_MS", "999"),
    ],
)
def test_a_value_that_does_not_fit_is_reported_by_name(name: str, text: str) -> None:
    [fault] = faults({f"POSTROAD_{name}": text})
    assert fault.startswith(f"POSTROAD_{name}: ")


@pytest.mark.parametrize(
    "line",
    [
        "port = 8080.5",
        "port = true",
        "port = [1]",
        "host = 5",
        "data_dir = 5",
        "access_log = 7",
        "engine_timeout = true",
        "nats_url = 1",
    ],
)
def test_a_value_of_another_type_in_the_file_is_reported(tmp_path: Path, line: str) -> None:
    [fault] = faults(config(tmp_path, line))
    assert fault.startswith(f"{env_name(line.split(' ')[0])}: ")


def test_a_whole_number_does_for_a_number(tmp_path: Path) -> None:
    assert load_settings(config(tmp_path, "engine_timeout = 5")).engine_timeout == 5.0


# Faults


def test_all_faults_are_reported_together(tmp_path: Path) -> None:
    environ = config(tmp_path, 'workers = 0\nhots = "x"\n[queues]\nmax = 5\n')
    found = faults({**environ, "POSTROAD_PORT": "x", "POSTROAD_PROT": "1"}, {"replicas": 2})
    assert {fault.partition(":")[0] for fault in found} == {
        "POSTROAD_WORKERS",
        "POSTROAD_HOTS",
        "POSTROAD_QUEUES",
        "POSTROAD_PORT",
        "POSTROAD_PROT",
        "POSTROAD_REPLICAS",
    }
    assert len(found) == 6


def test_an_unknown_name_is_reported() -> None:
    assert faults({"POSTROAD_PROT": "1"}) == ["POSTROAD_PROT: there is no such setting"]


@pytest.mark.parametrize("content", [b"port = ", b"\xff\xfe", b"port = 1\nport = 2"])
def test_a_file_that_cannot_be_read_is_reported_with_the_other_faults(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "postroad.toml"
    path.write_bytes(content)
    found = faults({"POSTROAD_CONFIG": str(path), "POSTROAD_PORT": "x"})
    assert [fault.partition(":")[0] for fault in found] == ["POSTROAD_CONFIG", "POSTROAD_PORT"]


def test_a_file_that_is_not_there_is_reported(tmp_path: Path) -> None:
    [fault] = faults({"POSTROAD_CONFIG": str(tmp_path / "none.toml")})
    assert "none.toml" in fault


# Secrets

SECRETS = {
    "POSTROAD_PLATFORM_KEY": "hunter2" * 5,
    "POSTROAD_ENCRYPTION_KEY": "hunter2" * 3,
    "POSTROAD_NATS_URL": "nats://user:hunter2@a:1,nats://user:hunter2@b:2",
}


def test_secrets_do_not_print() -> None:
    settings = load_settings(SECRETS)
    for shown in (repr(settings), str(settings), f"{settings}", f"{settings.platform_key}", f"{settings.nats_url:>5}"):
        assert "hunter2" not in shown
    assert "hunter2" not in "%s %r" % (settings.platform_key, settings.encryption_key)  # noqa: UP031
    assert repr(settings).count("'***'") == 3


def test_a_secret_can_be_revealed() -> None:
    settings = load_settings(SECRETS)
    assert settings.platform_key is not None and settings.platform_key.reveal() == "hunter2" * 5


@given(st.text())
def test_a_secret_is_what_it_was(text: str) -> None:
    assert Secret(text).reveal() == text
    assert Secret(Secret(text)).reveal() == text
    assert type(Secret(text).reveal()) is str
    assert msgspec.json.decode(msgspec.json.encode(Secret(text).reveal())) == text


def test_a_secret_given_as_an_override_stays_what_it_is() -> None:
    settings = load_settings({}, {"platform_key": Secret(KEY)})
    assert settings.platform_key is not None and settings.platform_key.reveal() == KEY


def test_a_secret_that_does_not_fit_is_not_shown_in_the_fault() -> None:
    assert "hunter2" not in "".join(faults({"POSTROAD_PLATFORM_KEY": "hunter2", "POSTROAD_ENCRYPTION_KEY": "hunter2"}))


def test_a_secret_of_another_type_is_not_shown_in_the_fault(tmp_path: Path) -> None:
    [fault] = faults(config(tmp_path, "platform_key = 271828182845904523536028747135266249775"))
    assert "271828" not in fault


# What follows from them


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, 1),
        ({"POSTROAD_NATS_URL": "nats://a:1"}, 1),
        ({"POSTROAD_NATS_URL": "nats://a:1,nats://b:1"}, 3),
        ({"POSTROAD_NATS_URL": "nats://a:1,nats://b:1", "POSTROAD_REPLICAS": "5"}, 5),
        ({"POSTROAD_REPLICAS": "3"}, 3),
    ],
)
def test_a_cluster_keeps_three_copies_unless_it_is_told_otherwise(environ: dict[str, str], expected: int) -> None:
    assert load_settings(environ).replica_count == expected


def test_where_batches_begin_follows_from_the_fsync() -> None:
    always, now_and_then = load_settings({}), load_settings({"POSTROAD_SYNC": "2s"})
    assert 1 < always.commit_batch_min_pending < now_and_then.commit_batch_min_pending <= 1000
    assert load_settings({"POSTROAD_BATCH_MIN_PENDING": "7"}).commit_batch_min_pending == 7


def test_the_defaults_pass_their_own_checks() -> None:
    texts = {name: default for name, default, _ in settings_table() if default}
    assert load_settings(texts) == Settings()


def test_an_old_name_still_works_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="POSTROAD_REST_SECONDS_MAX is now POSTROAD_KEEPALIVE_SECONDS"):
        assert load_settings({"POSTROAD_REST_SECONDS_MAX": "7"}).keepalive_seconds == 7
    assert load_settings({"POSTROAD_REST_SECONDS_MAX": "7", "POSTROAD_KEEPALIVE_SECONDS": "8"}).keepalive_seconds == 8


def test_no_two_sections_have_a_setting_of_one_name() -> None:
    names = [name for name, _, _ in settings_table()]
    assert len(names) == len(set(names))


# The docs


def test_every_setting_is_documented_with_its_default_and_its_reason() -> None:
    rows = re.findall(r"^\| `(POSTROAD_[A-Z_]+)` \| (.*?) ?\| (.*) \|$", DOCS.read_text(), re.MULTILINE)
    assert rows == settings_table()


def test_every_setting_has_a_reason() -> None:
    for name, _, why in settings_table():
        assert re.fullmatch(r"POSTROAD_[A-Z_]+", name)
        assert why.endswith(".") and "|" not in why and len(why) > 10


def test_the_table_shows_no_secret() -> None:
    secret = {env_name(field.name) for field in dataclasses.fields(Settings) if "Secret" in str(field.type)}
    assert secret == set(SECRETS)
    assert all(default == "" for name, default, _ in settings_table() if name in secret)


# An installation without keys


@pytest.mark.parametrize("host", [None, "127.0.0.1", "::1", "localhost"])
def test_an_installation_may_be_open_on_a_loopback_address(host: str | None) -> None:
    settings = load_settings({"POSTROAD_OPEN": "true", **({} if host is None else {"POSTROAD_HOST": host})})
    assert settings.section(AccessSettings).open is True


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "example.com", "", "127.0.0.1.example.com", "localhost."])
def test_an_installation_may_not_be_open_to_other_machines(host: str) -> None:
    [fault] = faults({"POSTROAD_OPEN": "true", "POSTROAD_HOST": host})
    assert fault.startswith("POSTROAD_OPEN: only on a loopback address")
    assert load_settings({"POSTROAD_OPEN": "false", "POSTROAD_HOST": host}).section(AccessSettings).open is False


def test_an_installation_is_not_open_by_accident(tmp_path: Path) -> None:
    """However the two settings come together."""
    assert load_settings({}).section(AccessSettings).open is False
    assert load_settings({}, {"open": True}).section(AccessSettings).open is True
    for environ, overrides in (
        ({"POSTROAD_HOST": "0.0.0.0"}, {"open": True}),
        ({"POSTROAD_OPEN": "1"}, {"host": "0.0.0.0"}),
        (config(tmp_path, 'open = true\nhost = "0.0.0.0"\n'), {}),
    ):
        assert "POSTROAD_OPEN" in faults(environ, dict[str, object](overrides))[0]


# Variables without the prefix


def test_plain_names_are_read() -> None:
    environ = {
        "RABBITMQ_URL": "amqps://u:p@one,amqps://u:p@two/v?cafile=/ca.pem",
        "PREFETCH_DEFAULT": "20",
        "PULL_MAX_DEFAULT": "50",
        "VISIBILITY_TIMEOUT_DEFAULT_MS": "5000",
        "RECEIPT_TTL_MAX_MS": "60000",
        "IDEMPOTENCY_TTL_MS": "7000",
        "AUDIT_MODE": "jobs_only",
    }
    settings = load_settings(environ)
    queues, governance = settings.section(QueuesSettings), settings.section(GovernanceSettings)
    assert (queues.rabbitmq_url, queues.rabbitmq_prefetch) == (Secret(environ["RABBITMQ_URL"]), 20)
    assert (governance.pull_messages_max, governance.visibility_timeout_ms) == (50, 5000)
    assert (governance.receipt_ttl_max_ms, governance.idempotency_ttl_ms, governance.audit_mode) == (60000, 7000, "jobs_only")


def test_plain_names_are_read_from_the_environment_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUDIT_MODE", "off")
    assert load_settings().section(GovernanceSettings).audit_mode == "off"


def test_a_plain_name_that_contradicts_stops_the_start() -> None:
    same = {"AUDIT_MODE": "off", "POSTROAD_AUDIT_MODE": "off"}
    assert load_settings(same).section(GovernanceSettings).audit_mode == "off"
    [fault] = faults({"AUDIT_MODE": "off", "POSTROAD_AUDIT_MODE": "full"})
    assert fault == "AUDIT_MODE: contradicts POSTROAD_AUDIT_MODE; remove one of the two"


def test_a_faulty_plain_name_is_reported() -> None:
    assert faults({"PULL_MAX_DEFAULT": "many"})
    assert faults({"RABBITMQ_URL": "http://one"})


def test_a_mail_server_needs_the_address_of_the_sender() -> None:
    server = {"POSTROAD_SMTP_URL": "smtp://mail.example.com"}
    assert faults(server) == ["POSTROAD_SMTP_URL: needs POSTROAD_SMTP_FROM, too"]
    assert load_settings({**server, "POSTROAD_SMTP_FROM": "alerts@example.com"})
    for text in ("alerts", "Alerts <a@example.com>", "a@example.com\n", "ä@example.com"):
        [fault] = faults({**server, "POSTROAD_SMTP_FROM": text})
        assert fault.startswith("POSTROAD_SMTP_FROM: ")


def test_the_default_backend_needs_its_server() -> None:
    [fault] = faults({"POSTROAD_QUEUE_BACKEND": "rabbitmq"})
    assert "POSTROAD_RABBITMQ_URL" in fault
    load_settings({"POSTROAD_QUEUE_BACKEND": "rabbitmq", "RABBITMQ_URL": "amqp://u:p@one/"})
