"""A misspelled keyword argument is refused with the nearest name there is, as a misspelled flag is."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from ddip._client import ConfigError, did_you_mean

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def known_keywords_only(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """For what has many of them."""
    known = [name for name in inspect.signature(function).parameters if name != "self"]
    what = function.__qualname__.removesuffix(".__init__")

    @functools.wraps(function)
    def checked(*arguments: Arguments.args, **keywords: Arguments.kwargs) -> Result:
        for name in keywords:
            if name not in known:
                raise ConfigError(f"ddip.{what} has no argument {name}={did_you_mean(name, known)}")
        return function(*arguments, **keywords)

    return checked
