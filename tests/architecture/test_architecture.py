"""Is it still the same shape? Read from the source, so that what nobody imports counts too. `make check` has the import rules."""

import ast
import html
import importlib
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from postroad.http.system_routes import errors_page
from postroad.kernel.errors import ERRORS
from postroad.kernel.event import Event, event_name
from postroad.registry import event_types

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "src" / "postroad"
MODULES = sorted(SOURCE.rglob("*.py"))
each_module = pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))

LINES_MAX = 450
READS_THE_ENVIRONMENT = {
    "settings.py",
    "runtime/process_supervisor.py",
    "client/clients.py",
    "cli/profiles.py",
    "pipeline/spark_session.py",
}
SAYS_NOTHING = {"utils", "util", "common", "helpers", "helper", "manager", "managers", "core", "base", "misc", "shared"}


def parsed(module: Path) -> ast.Module:
    return ast.parse(module.read_text(), str(module))


def dotted(module: Path) -> str:
    return ".".join(module.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")


# Errors


def defined_codes() -> Iterator[tuple[str, Path]]:
    """Every `class …(…, code="…")` of the source, and where it is."""
    for module in MODULES:
        for node in ast.walk(parsed(module)):
            for keyword in node.keywords if isinstance(node, ast.ClassDef) else ():
                if keyword.arg == "code" and isinstance(keyword.value, ast.Constant):
                    yield str(keyword.value.value), module


CODES = dict(defined_codes())


@pytest.fixture(autouse=True, scope="module")
def all_errors_are_defined() -> None:
    """An error is in the table once its module is imported."""
    for module in set(CODES.values()):
        importlib.import_module(dotted(module))


def test_the_table_has_every_error_of_the_source() -> None:
    assert len(CODES) > 20
    assert set(ERRORS) == {"internal", *CODES}


def test_no_two_errors_of_the_source_share_a_code() -> None:
    codes = [code for code, _ in defined_codes()]
    assert len(set(codes)) == len(codes)


def test_every_error_is_on_the_errors_page() -> None:
    page = html.unescape(errors_page().decode())
    for code, error in ERRORS.items():
        retry = "yes" if error.retryable else "no"
        row = f'<tr id="{code}"><td><code>{code}</code><td>{error.status}<td>{retry}<td>{error.title}<td>{error.__doc__}'
        assert row in page


def test_every_error_is_in_the_docs() -> None:
    text = (ROOT / "docs" / "errors.md").read_text()
    rows = re.findall(r"^\| `([a-z-]+)` \| (\d+) \| (yes|no) \| (.*?) \| (.*) \|$", text, re.MULTILINE)
    expected = [
        (code, str(error.status), "yes" if error.retryable else "no", error.title, error.__doc__)
        for code, error in sorted(ERRORS.items())
    ]
    assert rows == expected


def test_what_may_succeed_later_is_a_5xx_a_conflict_or_a_time_out() -> None:
    assert all(error.status >= 500 or error.status in (408, 409, 429) for error in ERRORS.values() if error.retryable)


# Events


@pytest.mark.parametrize("kind", event_types(), ids=event_name)
def test_every_event_is_in_the_docs_with_its_fields(kind: type[Event]) -> None:
    text = (ROOT / "docs" / "events.md").read_text()
    found = re.search(rf"^## `{re.escape(event_name(kind))}`\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, "the type has no heading of its own"
    section = found[1]
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    assert f"Version {fields['version'].default}, on `{kind.stream}`." in section
    assert kind.__doc__ and kind.__doc__ in section
    listed = re.findall(r"`([a-z_]+)`", section.strip().rpartition("\n")[2])
    assert listed == [name for name in fields if name != "version"]


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


@pytest.mark.parametrize("page", ["settings.md", "errors.md", "events.md"])
def test_a_page_that_comes_from_the_code_is_not_old(page: str) -> None:
    assert (ROOT / "docs" / page).read_text() == write_docs().PAGES[page](), "run `make docs`"


# Modules


@each_module
def test_a_module_is_short_enough_to_be_read(module: Path) -> None:
    assert len(module.read_text().splitlines()) <= LINES_MAX


@each_module
def test_a_module_says_its_job_first(module: Path) -> None:
    docstring = ast.get_docstring(parsed(module))
    if module.name == "__init__.py" and not module.read_text().strip():
        return
    assert docstring and len(docstring.splitlines()[0]) > 10


@each_module
def test_a_module_has_a_name_that_says_something(module: Path) -> None:
    assert not SAYS_NOTHING & set(module.relative_to(SOURCE).with_suffix("").parts)


_ENVIRONMENT = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}


def reads_environment(tree: ast.AST) -> bool:
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="os"), attr=name) if name in _ENVIRONMENT:
                return True
            case ast.ImportFrom(module="os", names=names) if {one.name for one in names} & _ENVIRONMENT:
                return True
    return False


@each_module
def test_nothing_but_the_settings_reads_the_environment(module: Path) -> None:
    """Process supervisor and Spark session pass it on to child processes; the SDK and the CLI's profiles have their own."""
    expected = str(module.relative_to(SOURCE)) in READS_THE_ENVIRONMENT
    assert reads_environment(parsed(module)) == expected


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
    allowed |= {"base64", "bisect", "functools", "ipaddress", "yarl"}
    allowed |= {
        f"postroad.{name}"
        for name in (
            "streams.offsets",
            "streams.records",
            "stream_subscriptions.records",
            "stream_subscriptions.rules",
            "sessions.records",
        )
    }  # pure themselves
    rules = [module for module in MODULES if module.name == "rules.py"]
    assert rules
    for module in rules:
        for node in ast.walk(parsed(module)):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [name.name for name in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                assert any(name == one or name.startswith(f"{one}.") for one in allowed), f"{module}: {name}"
                assert name != "postroad.kernel.ids" and not name.endswith("now_ms")
