"""A mistake in a cluster file as text: what was expected at which setting, and what was given."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from broker.config.yaml_marks import Problem


def problem_of(detail: ErrorDetails, settings: type[BaseModel]) -> Problem:
    location = tuple(detail["loc"])
    kind, value = detail["type"], detail.get("input")
    if kind == "extra_forbidden":
        return Problem(location, _unknown_setting(location, settings))
    if kind == "missing":
        return Problem(location, "required setting is missing")
    if kind == "value_error":
        return Problem(location, str(detail["ctx"]["error"]))
    if kind in ("too_short", "too_long"):
        context = detail["ctx"]
        bound = f"at least {context['min_length']}" if kind == "too_short" else f"at most {context['max_length']}"
        return Problem(location, f"expected {bound}, got {context['actual_length']}")
    return Problem(
        location,
        f"{_expected(kind, detail)}, got {value!r}"
        if not isinstance(value, (dict, list))
        else f"{_expected(kind, detail)}, got {kind_of(value)}",
    )


def _expected(kind: str, detail: ErrorDetails) -> str:
    context = detail.get("ctx", {})
    words = {
        "int_type": "expected a whole number",
        "string_type": "expected text",
        "bool_type": "expected true or false",
        "list_type": "expected a list",
        "model_type": "expected a mapping of settings",
        "dict_type": "expected a mapping of settings",
        "literal_error": f"expected {context.get('expected', '')}",
        "greater_than_equal": f"expected {context.get('ge')} or more",
        "less_than_equal": f"expected {context.get('le')} or less",
    }
    return words.get(kind, f"expected a valid value ({detail['msg']})")


def _unknown_setting(location: Sequence[str | int], settings: type[BaseModel]) -> str:
    """``unknown setting``, with the nearest name that exists at that place."""
    model = settings
    for part in location[:-1]:
        if isinstance(part, str) and part in model.model_fields:
            model = _model_of(model.model_fields[part].annotation) or model
    known = list(model.model_fields)
    by_lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(str(location[-1]).lower(), list(by_lower), n=1, cutoff=0.6)
    return f"unknown setting; did you mean {by_lower[near[0]]}?" if near else f"unknown setting; expected one of {', '.join(known)}"


def _model_of(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) is not None:
        return next((found for argument in get_args(annotation) if (found := _model_of(argument))), None)
    return None


def kind_of(value: object) -> str:
    if value is None:
        return "nothing"
    return {"dict": "a mapping", "list": "a list", "str": "text"}.get(type(value).__name__, repr(value))
