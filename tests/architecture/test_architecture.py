"""Is it still the same shape? Read from the source, so that what nobody imports counts too. `make check` has the import rules."""

import ast
import html
import importlib
import importlib.util
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from postroad.container import described_assembly
from postroad.http.html_pages import errors_page
from postroad.kernel.errors import ERRORS, PostroadError
from postroad.kernel.event import Event, event_name
from postroad.kernel.usage_counters import HTTP_COUNTERS
from postroad.registry import capabilities, event_types
from postroad.telemetry.events import TrafficSampled
from tests.architecture.source import ROOT, Module, modules

pytestmark = pytest.mark.xdist_group("source")  # which is parsed once per process

LINES_MAX = 450
READS_THE_ENVIRONMENT = {
    "settings.py",
    "runtime/process_supervisor.py",
    "client/clients.py",
    "cli/profiles.py",
    "pipeline/spark_session.py",
}
SAYS_NOTHING = {"utils", "util", "common", "helpers", "helper", "manager", "managers", "core", "base", "misc", "shared"}


# Errors


@cache
def defined_codes() -> tuple[tuple[str, Module], ...]:
    """Every `class …(…, code="…")` of the source, and its module."""
    return tuple(
        (str(keyword.value.value), module)
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef)
        for keyword in node.keywords
        if keyword.arg == "code" and isinstance(keyword.value, ast.Constant)
    )


@pytest.fixture(autouse=True, scope="module")
def all_errors_are_defined() -> None:
    """An error is in the table once its module is imported."""
    for dotted in {module.dotted for _, module in defined_codes()}:
        importlib.import_module(dotted)


def all_errors() -> dict[str, type[PostroadError]]:
    """Without those that tests define."""
    return {code: error for code, error in ERRORS.items() if error.__module__.startswith("postroad.")}


def test_the_table_has_every_error_of_the_source_once() -> None:
    codes = Counter(code for code, _ in defined_codes())
    assert len(codes) > 20
    assert set(all_errors()) == {"internal", *codes}
    assert not [code for code, count in codes.items() if count > 1]


def test_every_error_is_on_the_errors_page() -> None:
    page = html.unescape(errors_page(described_assembly().errors).decode())
    assert "`" not in page and "<main>" in page
    for code, error in all_errors().items():
        retry = "yes" if error.retryable else "no"
        row = f'<tr id="{code}"><td><code>{code}</code><td>{error.status}<td>{retry}<td>{error.title}<td>'
        assert row + re.sub("`([^`]*)`", r"<code>\1</code>", error.__doc__ or "") in page


def test_every_error_is_declared_by_the_kernel_or_one_capability() -> None:
    declared = Counter(error.code for error in described_assembly().errors)
    assert declared == Counter(all_errors().keys())


def test_every_event_and_counter_is_declared_by_a_capability() -> None:
    assert described_assembly().events == event_types()
    counters = [name for kind in capabilities() for name in kind.usage]
    assert len(set(counters)) == len(counters) and not set(counters) & set(HTTP_COUNTERS)
    assert set(counters) <= {field.name for field in msgspec.structs.fields(TrafficSampled)}


def test_every_error_is_in_the_docs() -> None:
    text = (ROOT / "docs" / "errors.md").read_text()
    rows = re.findall(r"^\| `([a-z-]+)` \| (\d+) \| (yes|no) \| (.*?) \| (.*) \|$", text, re.MULTILINE)
    expected = [
        (code, str(error.status), "yes" if error.retryable else "no", error.title, error.__doc__)
        for code, error in sorted(all_errors().items())
    ]
    assert rows == expected


def test_what_may_succeed_later_is_a_5xx_a_conflict_or_a_time_out() -> None:
    assert all(error.status >= 500 or error.status in (408, 409, 429) for error in all_errors().values() if error.retryable)


# Events


def test_every_event_is_in_the_docs_with_its_fields() -> None:
    text = (ROOT / "docs" / "events.md").read_text()
    for kind in event_types():
        found = re.search(rf"^## `{re.escape(event_name(kind))}`\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
        assert found, f"{event_name(kind)} has no heading of its own"
        assert_described(kind, found[1])


def assert_described(kind: type[Event], section: str) -> None:
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    assert f"Version {fields['version'].default}, on `{kind.stream}`." in section
    assert kind.__doc__ and " ".join(kind.__doc__.split()) in " ".join(section.split())
    listed = re.findall(r"`([a-z_.]+)`", section.strip().rpartition("\n")[2])
    assert listed == [field.encode_name for name, field in fields.items() if name != "version"]


def test_the_docs_have_no_event_that_is_not_there() -> None:
    text = (ROOT / "docs" / "events.md").read_text()
    assert re.findall(r"^## `(.*)`$", text, re.MULTILINE) == [event_name(kind) for kind in event_types()]


# Pages that come from the code


def write_docs() -> ModuleType:
    spec = importlib.util.spec_from_file_location("write_docs", ROOT / "scripts" / "write_docs.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", ["settings.md", "errors.md", "events.md", "insights.md"])
def test_a_page_that_comes_from_the_code_is_not_old(page: str) -> None:
    assert (ROOT / "docs" / page).read_text() == write_docs().PAGES[page](), "run `make docs`"


# Modules


def test_a_module_is_short_enough_to_be_read() -> None:
    written = [module for module in modules() if "generated/" not in module.path]
    assert not [module.path for module in written if len(module.text.splitlines()) > LINES_MAX]


def test_a_module_says_its_job_first() -> None:
    assert not [module.path for module in modules() if module.text.strip() and not has_module_docstring(module.tree)]


def has_module_docstring(tree: ast.Module) -> bool:
    docstring = ast.get_docstring(tree)
    return docstring is not None and len(docstring.splitlines()[0]) > 10


def test_a_module_has_a_name_that_says_something() -> None:
    assert not [module.path for module in modules() if SAYS_NOTHING & set(Path(module.path).with_suffix("").parts)]


_ENVIRONMENT = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}


def reads_environment(tree: ast.AST) -> bool:
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="os"), attr=name) if name in _ENVIRONMENT:
                return True
            case ast.ImportFrom(module="os", names=names) if {one.name for one in names} & _ENVIRONMENT:
                return True
    return False


def test_nothing_but_the_settings_reads_the_environment() -> None:
    """Process supervisor and Spark session pass it on to child processes; the SDK and the CLI's profiles have their own."""
    assert {module.path for module in modules() if reads_environment(module.tree)} == READS_THE_ENVIRONMENT


@pytest.mark.parametrize(
    "text",
    ["import os\nos.environ['X']", "import os\nos.getenv('X')", "from os import environ", "import os\nx = {**os.environ}"],
)
def test_reading_the_environment_would_be_noticed(text: str) -> None:
    assert reads_environment(ast.parse(text))


def test_rules_are_pure() -> None:
    """No I/O, no clock, no engine: what they import says so."""
    allowed = {
        "postroad.api",
        "postroad.contracts",
        "postroad.kernel",
        "datetime",
        "hashlib",
        "struct",
        "uuid",
        "dataclasses",
        "enum",
        "typing",
        "msgspec",
        "re",
        "collections",
    }
    allowed |= {"base64", "bisect", "difflib", "functools", "ipaddress", "itertools", "math", "yarl", "zlib", "zoneinfo"}
    allowed |= {
        f"postroad.{name}"
        for name in (
            "schedules.cron",
            "streams.offsets",
            "streams.records",
            "stream_subscriptions.records",
            "stream_subscriptions.rules",
            "sessions.records",
        )
    }  # pure themselves
    rules = [module for module in modules() if Path(module.path).name == "rules.py"]
    assert rules
    impure = [(module.path, name) for module in rules for name in imported(module.tree) if not is_pure(name, allowed)]
    assert not impure


def is_pure(name: str, allowed: set[str]) -> bool:
    if name == "postroad.kernel.ids" or name.endswith("now_ms"):
        return False
    return any(name == one or name.startswith(f"{one}.") for one in allowed)


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
