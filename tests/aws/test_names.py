"""Every operation, attribute and error that the reference page declares as supported is named by a test of its service."""

import re
from pathlib import Path

import pytest

from postroad.aws.model import service_model

_ROOT = Path(__file__).parent.parent
_PAGE = (_ROOT.parent / "docs" / "aws.md").read_text()
_TESTS = {
    "sqs": ("aws",),
    "sts": ("aws",),
    "sns": ("sns", "aws"),  # what all services share is tested with SQS
}


def _tests(service: str) -> str:
    return "\n".join(path.read_text() for name in _TESTS[service] for path in sorted((_ROOT / name).glob("test_*.py")))


def _method(operation: str) -> str:
    """The name of the operation in boto3."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", operation).lower()


def _raised(service: str) -> list[str]:
    rows = re.findall(r"^\| `(\w+)` \| `([\w.]+)` \| [^|]+ \| raised \|$", _PAGE, re.MULTILINE)
    known = service_model(service).errors
    return [code for shape, code in rows if known.get(shape, ("",))[0] == code]


@pytest.mark.parametrize("service", ["sqs", "sts", "sns"])
def test_operations(service: str) -> None:
    served = re.findall(rf"^\| `(\w+)` \| {service} \| supported \|$", _PAGE, re.MULTILINE)
    assert served
    assert [name for name in served if _method(name) not in _tests(service)] == []


@pytest.mark.parametrize("service", ["sqs", "sns"])
def test_errors(service: str) -> None:
    codes = _raised(service)
    assert codes
    # boto3 reports codes of SQS without their prefix in the JSON protocol
    assert [code for code in codes if code.removeprefix("AWS.SimpleQueueService.") not in _tests(service)] == []


def test_attributes() -> None:
    model = service_model("sqs")
    names = [*model.shapes["QueueAttributeName"].enum, *model.shapes["MessageSystemAttributeName"].enum]
    assert [name for name in names if name not in _tests("sqs")] == []
    sns = re.findall(r"^\| (?:topic|subscription) \| `(\w+)` \| (?:supported|stored only)", _PAGE, re.MULTILINE)
    assert sns
    assert [name for name in sns if name not in _tests("sns")] == []
