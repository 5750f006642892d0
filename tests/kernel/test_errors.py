import importlib
import inspect
import pkgutil
import re

import pytest

import postroad.http
import postroad.jetstream
import postroad.kernel
import postroad.runtime
from postroad.kernel.errors import ERRORS, Conflict, EngineFull, PostroadError, Unauthenticated
from postroad.queues.rabbitmq.connection import QueueMissing
from tests.looping import for_each


def _all_subclasses(of: type[PostroadError]) -> set[type[PostroadError]]:
    return {deep for cls in of.__subclasses__() for deep in {cls, *_all_subclasses(cls)}}


def _all_errors() -> set[type[PostroadError]]:
    for package in (postroad.kernel, postroad.jetstream, postroad.http, postroad.runtime):
        for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
            importlib.import_module(module.name)
    ours = {cls for cls in {PostroadError} | _all_subclasses(PostroadError) if cls.__module__.startswith("postroad.")}
    return {cls for cls in ours if not cls.__module__.startswith("postroad.client.")}  # classes for unknown codes


def test_every_error_with_a_code_is_in_the_table() -> None:
    with_code = {cls for cls in _all_errors() if "code" in vars(cls)}
    assert with_code == {error for error in ERRORS.values() if error.__module__.startswith("postroad.")}
    assert all(ERRORS[cls.code] is cls for cls in with_code)


# Distinguished within their package only: clients get the error that they are derived from.
_INTERNAL = {QueueMissing}


def test_an_error_without_a_code_is_a_base_class_or_another_status_of_one() -> None:
    bases = {cls for cls in _all_errors() if "code" not in vars(cls)}
    assert {cls for cls in bases if not cls.__subclasses__() and "status" not in vars(cls)} == _INTERNAL


@for_each(sorted(error.code for error in _all_errors() if "code" in vars(error)))
def test_an_error_of_the_table_is_complete(code: str) -> None:
    error = ERRORS[code]
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", error.code)
    assert 400 <= error.status <= 599
    assert error.title and not error.title.endswith(".")
    documented = inspect.cleandoc(vars(error).get("__doc__") or "")
    assert documented.endswith("."), "the docstring is the text of the docs page"


def test_two_errors_cannot_share_a_code() -> None:
    with pytest.raises(TypeError, match="conflict"):
        type("Again", (PostroadError,), {}, code="conflict", status=409, title="Again")
    assert ERRORS["conflict"] is Conflict


def test_the_text_of_an_error_without_detail_is_its_title() -> None:
    assert str(Unauthenticated()) == Unauthenticated.title
    assert Unauthenticated().detail == ""
    assert str(Unauthenticated("no such key")) == "no such key"


def test_an_error_has_retry_after_and_extra_fields() -> None:
    problem = EngineFull("the queue is full", retry_after=5, extra={"limit": 10})
    assert (problem.retry_after, problem.extra, problem.retryable, problem.status) == (5, {"limit": 10}, True, 507)
    assert (EngineFull().retry_after, EngineFull().extra) == (None, {})
