"""Queues and health on the command line, and properties of every command: help, JSON, exit codes, quick start."""

import ast
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
import typer
import typer.main

from postroad import client
from postroad.cli import output
from postroad.cli.root import ENTRIES, cli
from postroad.cli.server import RoleName
from postroad.container import Role
from postroad.kernel.errors import ERRORS, Unreachable
from postroad.runtime.embedded_server import free_port
from tests.cli.shell import Shell


def test_a_message_is_published_pulled_and_acknowledged(shell: Shell) -> None:
    made = shell.run("queues", "put", "orders", "--visibility-timeout-ms", "60000", "--backend", "engine", "--json").json
    assert made["settings"]["visibilityTimeoutMs"] == 60_000

    options = ("--header", "kind=new", "--correlation-id", "c", "--priority", "high", "--json")
    published = shell.run("queues", "publish", "orders", "-", *options, stdin='{"n": 1}').json
    assert "orders" in shell.run("queues", "list").stdout
    [message] = shell.run("queues", "pull", "orders", "--wait-ms", "5000", "--json").json
    assert (message["messageId"], message["payload"], message["headers"]) == (published["messageId"], {"n": 1}, {"kind": "new"})
    assert message["priority"] == "high"
    assert "acknowledged 1 of 1" in shell.run("queues", "ack", "orders", message["receiptId"]).stdout
    stats = shell.run("queues", "show", "orders", "--json").json["stats"]
    assert (stats["ready"], stats["leased"], stats["delayed"], stats["dead"]) == (0, 0, 0, 0)


def test_a_message_pulled_with_ack_is_not_redelivered(shell: Shell) -> None:
    shell.run("queues", "publish", "once", '"[bold]as it is[/bold]"')
    pulled = shell.run("queues", "pull", "once", "--wait-ms", "5000", "--ack").stdout
    assert "attempt" in pulled
    assert '"[bold]as it is[/bold]"' in pulled
    assert shell.run("queues", "show", "once", "--json").json["stats"]["leased"] == 0


def test_deleting_a_queue_asks_with_the_message_count(shell: Shell) -> None:
    shell.run("queues", "publish", "doomed", "1")
    refused = shell.invoke("queues", "delete", "doomed", stdin="n\n")
    assert refused.code == 1
    assert "Delete doomed with 1 messages?" in refused.stdout
    assert "deleted doomed with 1 messages" in shell.run("queues", "delete", "doomed", "--yes").stdout


def test_health_needs_no_key(shell: Shell) -> None:
    without_key = shell.with_environment(POSTROAD_KEY="")
    assert "engine" in without_key.run("health").stdout
    assert shell.run("health", "--json").json["status"] == "ready"


def test_a_command_runs_as_a_process(shell: Shell) -> None:
    assert "ready" in shell.run_process("health", "--json").stdout
    assert shell.run_process("queues", "show", "nowhere").code == 4


@pytest.mark.engine
def test_the_openapi_document_needs_no_server(anonymous: Shell) -> None:
    assert anonymous.run_process("openapi").json["openapi"] == "3.1.0"


def test_the_version_is_printed(anonymous: Shell) -> None:
    assert anonymous.run("--version").stdout.startswith("postroad ")


# Exit codes


@pytest.mark.parametrize(
    ("words", "code", "printed"),
    [
        (("queues", "show", "nowhere"), 4, "Queue not found"),
        (("queues", "publish", "orders", "not json"), 2, "not JSON"),
        (("queues", "publish", "orders", "NaN"), 2, "not JSON"),
        (("queues", "publish", "orders", "1", "--header", "kind"), 2, "name=value"),
        (("queues", "put", "a b"), 2, "a queue name"),
        (("queues", "ack", "orders", "forged"), 1, "acknowledged 0 of 1"),
        (("queues", "put", "orders", "--retry-delays-ms", "1000,soon"), 2, "not a list of numbers"),
        (("queues", "put", "orders", "--retry-delays-ms", "-1"), 2, "Invalid body"),
        (("queues", "nack", "orders", "forged"), 1, "nacked 0 of 1"),
        (("queues", "extend", "orders", "forged"), 1, "extended 0 of 1"),
        (("queues", "peek", "orders", "--field", "name"), 2, "field"),
        (("queues", "peek", "nowhere"), 4, "there is no queue 'nowhere'"),
        (("streams", "info", "no/where"), 4, "no/where"),
        (("streams", "cat", "no/where"), 4, "no/where"),
        (("streams", "tail", "no/where"), 4, "no/where"),
        (("streams", "append", "no/where", "x"), 4, "no/where"),
        (("sessions", "show", "nobody"), 4, "there is no session 'nobody'"),
        (("queues", "dlq", "show", "orders", "nowhere"), 4, "Message not found"),
        (("queues", "dlq", "redrive", "orders", "--to", "nowhere"), 4, "Queue not found"),
        (("tasks", "show", "nowhere"), 4, "Task not found"),
        (("tasks", "list", "--state", "asleep"), 2, "state"),
        (("jobs", "show", "nowhere"), 4, "Job not found"),
        (("jobs", "status"), 3, "Forbidden"),
        (("jobs", "rebuild"), 3, "Forbidden"),
        (("worker", "nowhere", "--exec", "true"), 4, "Queue not found"),
        (("worker", "orders", "--exec", "true", "--concurrency", "0"), 2, "concurrency"),
        (("tenants", "list"), 3, "Forbidden"),
        (("keys", "show", "0" * 16), 4, "Key not found"),
        (("keys", "create", "x", "--scope", "everything"), 2, "everything"),
        (("keys", "create", "x", "--scope", "read", "--expires", "soon"), 2, "neither a duration"),
        (("keys", "create", "x", "--scope", "read", "--expires", "2020-01-01"), 2, "in the past"),
        (("keys", "rotate", "0" * 16, "--grace", "long"), 2, "not a duration"),
        (("secrets", "delete", "nowhere", "--yes"), 4, "Secret not found"),
        (("tokens", "create", "the-moon"), 2, "must have one of the forms"),
        (("invites", "claim", "pr_invite_made-up", "--tenant", "x"), 4, "Invite not found"),
        (("settings", "set", "max_queues=1"), 3, "only a platform key"),
        (("settings", "set", "pace=fast"), 2, "unknown setting 'pace'"),
        (("settings", "set", "max_queues"), 2, "NAME=VALUE"),
        (("settings", "set", "max_queues=null"), 2, "unset"),
        (("settings", "set", "audit_mode=loud"), 2, "Invalid body"),
        (("audit", "--from", "yesterday"), 2, "neither a duration"),
        (("audit", "--tenant", "somebody-else"), 3, "Forbidden"),
        (("--profile", "nobody", "whoami"), 2, "there is no profile 'nobody'"),
    ],
)
def test_an_error_has_a_message_and_an_exit_code(shell: Shell, words: tuple[str, ...], code: int, printed: str) -> None:
    shell.run("queues", "put", "orders")
    finished = shell.invoke(*words)
    assert finished.code == code, finished
    assert printed in " ".join((finished.stderr + finished.stdout).replace("│", " ").split())
    assert "Traceback" not in finished.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ("invalid-body", 2),
        ("unauthenticated", 3),
        ("tenant-disabled", 3),
        ("rate-limited", 5),
        ("invite-ended", 4),
        ("already-exists", 1),
        ("precondition-failed", 1),
        ("engine-unavailable", 5),
        ("internal", 1),
    ],
)
def test_every_kind_of_error_has_its_exit_code(error: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    problem = ERRORS[error]("the detail")
    problem.request_id = "r-1"
    with pytest.raises(typer.Exit) as left, output.exit_on_error():
        raise problem
    assert left.value.exit_code == code
    assert capsys.readouterr().err == f"postroad: {problem.title}: the detail (request r-1)\n"


def test_a_wrong_key_is_refused_and_not_shown(shell: Shell) -> None:
    finished = shell.with_environment(POSTROAD_KEY="pr_live_wrong").invoke("queues", "list")
    assert finished.code == 3
    assert "pr_live_wrong" not in finished.stderr + finished.stdout


def test_an_unreachable_server_is_exit_code_5(anonymous: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_DEADLINE_SECONDS", 0.2)
    finished = anonymous.with_environment(POSTROAD_URL=f"http://127.0.0.1:{free_port()}").invoke("health")
    assert finished.code == 5
    assert Unreachable.title in finished.stderr


@pytest.mark.parametrize(
    ("url", "cause"),
    [
        ("ftp://server", "must start with http:// or https://"),
        ("server:8080", "must start with http:// or https://"),
        ("http://", "it has no host"),
        ("http://server:http", "not a number from 1 to 65535"),
        ("http://server:99999", "not a number from 1 to 65535"),
        ("http://name:secret@ser ver", "it has a space"),
        ("http://[::1", "cannot be used"),
        ("http://server/?tenant=a", "must not have a query"),
    ],
)
def test_an_unusable_url_is_exit_code_2(anonymous: Shell, url: str, cause: str) -> None:
    finished = anonymous.with_environment(POSTROAD_URL=url).invoke("health")
    assert finished.code == 2
    assert cause in finished.stderr
    assert "secret" not in finished.stderr


def test_a_retried_call_is_announced_once(anonymous: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_DEADLINE_SECONDS", 0.5)
    finished = anonymous.with_environment(POSTROAD_URL=f"http://127.0.0.1:{free_port()}").invoke("health")
    assert finished.stderr.count("waiting up to") == 1


def test_a_server_that_accepts_but_does_not_respond_is_announced(anonymous: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_DEADLINE_SECONDS", 0.5)
    monkeypatch.setattr("postroad.client.transport.SLOW_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        finished = anonymous.with_environment(POSTROAD_URL=f"http://127.0.0.1:{silent.getsockname()[1]}").invoke("health")
    assert finished.code == 5
    assert "has not responded yet; waiting up to" in finished.stderr


# Every command


def all_commands(group: Any, *before: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    context = group.context_class(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if hasattr(command, "commands"):
            yield from all_commands(command, *before, name)
        else:
            yield (*before, name), command


COMMANDS = dict(all_commands(typer.main.get_command(cli)))


def test_every_command_and_option_has_a_help_text() -> None:
    assert not [words for words, command in COMMANDS.items() if not command.help]
    options = [(words, parameter) for words, command in COMMANDS.items() for parameter in command.params]
    assert not [(words, parameter.name) for words, parameter in options if not getattr(parameter, "help", None)]


@pytest.mark.parametrize("group", ["insights", "pipeline"])
def test_the_page_of_commands_lists_each_one_of_a_group(group: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    [listed] = re.findall(rf"^\| `{group} (.*?)` \|", page, re.MULTILINE)
    assert sorted(listed.split(r" \| ")) == sorted(words[1] for words in COMMANDS if words[0] == group)


@pytest.mark.slow
def test_every_command_prints_its_help(anonymous: Shell) -> None:
    for words in COMMANDS:
        assert "Usage" in anonymous.run(*words, "--help").stdout


def test_every_list_can_be_printed_whole() -> None:
    lists = [command for words, command in COMMANDS.items() if words[-1] == "list" or words[0] == "insights"]
    assert len(lists) > 10
    assert all("wide" in {parameter.name for parameter in command.params} for command in lists)


def test_every_item_can_be_printed_whole() -> None:
    items = [words for words, command in COMMANDS.items() if words[-1] in ("show", "status") and words[0] != "pipeline"]
    assert len(items) > 5
    handwritten = {("streams", "show"), ("settings", "show"), ("queues", "dlq", "show"), ("snapshot", "show")}
    without = [one for one in items if "wide" not in {parameter.name for parameter in COMMANDS[one].params}]
    assert set(without) <= handwritten


def test_time_ranges_have_the_same_options_everywhere() -> None:
    flags = {flag for command in COMMANDS.values() for parameter in command.params for flag in parameter.opts}
    assert flags & {"--since", "--until", "--start", "--end"} == set()


def test_the_old_options_of_time_ranges_are_accepted(shell: Shell) -> None:
    for words in (("audit",), ("jobs", "list"), ("insights", "backlog")):
        recent = shell.invoke(*words, "--from", "1h", "--to", "2100-01-01", "--json")
        old = shell.invoke(*words, "--since", "1h", "--until", "2100-01-01", "--json")
        assert (old.code, old.stderr[:40]) == (recent.code, recent.stderr[:40])
        assert "--since" not in shell.run(*words, "--help").stdout


def test_the_list_of_jobs_has_fifty_by_default() -> None:
    assert {one.name: one.default for one in COMMANDS["jobs", "list"].params}["limit"] == 50


def _name(called: ast.expr) -> str:
    return called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""


def used_words() -> set[tuple[str, ...]]:
    """The first words of every command that a test of this folder runs: `run("keys", "list")`, `invoke(…)`."""
    found: set[tuple[str, ...]] = set()
    for path in Path(__file__).parent.glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and _name(node.func) in ("run", "run_process"):
                texts = [one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
                options = 2 if texts[:1] in (["--profile"], ["--tenant"]) else 0
                found |= {tuple(texts[options : options + count]) for count in (1, 2, 3)}
    return found


# In tests/faults, tests/demo, tests/report and tests/backup
TESTED_ELSEWHERE = {("up",), ("demo",), ("report",), ("backup",), ("restore",)}


def test_every_command_is_run_by_a_test() -> None:
    assert set(COMMANDS) - used_words() == TESTED_ELSEWHERE


def test_every_group_has_a_help_text(anonymous: Shell) -> None:
    for words in {words[:-1] for words in COMMANDS}:
        assert "Usage" in anonymous.run(*words, "--help").stdout


# The start


def imported_by(code: str, environment: Mapping[str, str] | None = None) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(); print(*(name for name, one in sys.modules.items() if one))"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return set(done.stdout.splitlines()[-1].split())


SLOW = {
    *("postroad.container", "postroad.runtime.supervisor", "nats", "uvicorn", "structlog", "asyncio", "rich.console", "click"),
    *("pydantic", "pygments", "cryptography"),
}


def imported_by_command(*words: str, environment: Mapping[str, str]) -> set[str]:
    """The modules that a process has imported when the command ends, which must succeed."""
    lines = [
        "import sys",
        f"sys.argv = {['postroad', *words]!r}",
        "from postroad.__main__ import main",
        "try: main()",
        "except SystemExit as end: assert not end.code, end.code",
    ]
    return imported_by("\n".join(lines), environment)


def test_an_ordinary_call_imports_only_what_it_uses(shell: Shell) -> None:
    """A command takes as long as its imports: the server, asyncio and rich would triple it."""
    environment = {**os.environ, "XDG_CONFIG_HOME": str(shell.home), **shell.environment}
    groups = {entry.modules[0] for entry in ENTRIES}
    of_version = imported_by_command("--version", environment=environment)
    assert of_version & {*SLOW, *groups, "httpx", "msgspec", "postroad.client"} == set()
    of_queues = imported_by_command("queues", "list", environment=environment)
    assert of_queues & {*SLOW, *groups - {"postroad.cli.queues", "postroad.cli.tasks"}} == set()
    assert of_queues & {"postroad.api.streams", "postroad.api.jobs", "postroad.api.insights", "postroad.api.access"} == set()
    of_keys = imported_by_command("keys", "list", environment=environment)
    assert of_keys & {*SLOW, *groups - {"postroad.cli.keys"}, "postroad.api.queues", "postroad.api.streams"} == set()


@pytest.mark.engine
def test_help_and_completion_of_the_root_import_no_command(anonymous: Shell) -> None:
    environment = {"PATH": "/usr/bin:/bin", "XDG_CONFIG_HOME": str(anonymous.home)}
    groups = {entry.modules[0] for entry in ENTRIES}
    assert not imported_by_command("--help", environment=environment) & groups


def test_the_overview_shows_the_help_text_of_each_command() -> None:
    group = typer.main.get_command(cli)
    for entry in ENTRIES:
        text = entry.load().help or ""
        assert entry.help == " ".join(text.split("\n\n")[0].split()), entry.name
        assert entry.name in group.list_commands(group.context_class(group))  # type: ignore[attr-defined]


def test_a_mistyped_command_gets_a_suggestion(anonymous: Shell) -> None:
    finished = anonymous.invoke("queue", "list")
    assert finished.code == 2
    assert "Did you mean 'queues'" in " ".join(finished.stderr.replace("│", " ").split())


@pytest.mark.engine
def test_the_client_imports_what_is_used() -> None:
    of_client = imported_by("import postroad.client")
    assert not of_client & {
        "postroad.container",
        "postroad.runtime.supervisor",
        "nats",
        "uvicorn",
        "typer",
        "postroad.api.queues",
    }


def test_every_name_of_the_client_can_be_imported() -> None:
    assert all(getattr(client, name).__name__ == name for name in client.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Unknown'"):
        client.Unknown  # noqa: B018


def test_the_role_option_offers_every_role_and_the_old_name_of_one() -> None:
    assert list(get_args(RoleName)) == [*(role.value for role in Role), "backstage"]


@pytest.mark.engine
def test_the_old_name_of_a_role_is_accepted_with_a_warning(anonymous: Shell) -> None:
    finished = anonymous.run_process("serve", "--role", "backstage")  # ends, as there is no engine to connect to
    assert "the role backstage was renamed: use --role background" in finished.stderr
    assert "POSTROAD_NATS_URL" in finished.stderr


@pytest.mark.engine
def test_shell_completion(anonymous: Shell) -> None:
    asked = anonymous.with_environment(_POSTROAD_COMPLETE="complete_bash", COMP_WORDS="postroad keys ro", COMP_CWORD="2")
    finished = subprocess.run(
        [sys.executable, "-c", "from postroad.__main__ import main; import sys; sys.argv[0] = 'postroad'; main()"],
        env={"PATH": "/usr/bin:/bin", "XDG_CONFIG_HOME": str(asked.home), **asked.environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert finished.stdout.split() == ["rotate"]
