"""Functions that a recorded plan repeats as one call, whatever happens inside them."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

P = ParamSpec("P")
R = TypeVar("R")


def opaque(function: Callable[P, R]) -> Callable[P, R]:
    """Make `function` one call for a recorder. Its tensors must be positional arguments.

    For what depends on the lengths of a batch (new at every step), and for what would only
    spend places: the inside of a rotation or a norm.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        tensors = [a for a in args if isinstance(a, Tensor)]
        if has_torch_function(tensors):
            return handle_torch_function(call, tensors, *args, **kwargs)
        return function(*args, **kwargs)

    return call
