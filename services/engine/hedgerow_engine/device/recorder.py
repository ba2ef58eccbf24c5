"""A forward pass written down as a list of calls, and that list run again.

While a `Recorder` is active, every torch call that takes a tensor passes through it: the call
runs, and is noted with its resolved function, its constants (weights, static inputs) and the
places its tensors came from. Replaying is a loop over that list, without a line of model code.
A tensor's place is reused once nothing later reads it, so a plan keeps no more memory alive
than the pass it was taken from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class _Step(NamedTuple):
    """values[out] = function(*args, **kwargs), after args[i] = values[place] for each input."""

    function: Callable[..., Any]
    args: list[Any]
    kwargs: dict[str, Any]
    inputs: tuple[tuple[int, int], ...]
    named: tuple[tuple[str, int], ...]
    out: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The calls of one forward pass at one shape. Replays read the same static inputs."""

    steps: tuple[_Step, ...]
    places: int
    outputs: Mapping[str, int]

    def replay(self) -> dict[str, Tensor]:
        values: list[Any] = [None] * self.places
        for function, args, kwargs, inputs, named, out in self.steps:
            if inputs:
                args = args.copy()
                for at, place in inputs:
                    args[at] = values[place]
            if named:
                kwargs = {**kwargs, **{name: values[place] for name, place in named}}
            values[out] = function(*args, **kwargs)
        return {name: values[place] for name, place in self.outputs.items()}

    def reset(self) -> None:
        """A plan owns only what its pass owned: nothing to give back before it is dropped."""


class Recorder(TorchFunctionMode):
    """Notes the torch calls made inside `with recorder:`."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[_Call] = []
        # Results stay alive while recording, so that an id names one tensor only.
        self._alive: list[Any] = []
        self._made: dict[int, int] = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        keywords = dict(kwargs or {})
        # Before the call: one that works in place gives its tensor a new place.
        linked = [self._link(a) for a in args]
        named = {k: self._link(v) for k, v in keywords.items()}
        result = func(*args, **keywords)
        for one in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(one, Tensor) or result is None:
                break
        else:
            return result
        made = len(self._alive)
        self._alive.append(result)
        self._calls.append(_Call(func, linked, named, made))
        if isinstance(result, (tuple, list)):
            self._unpack(result)
        elif isinstance(result, Tensor):
            self._made[id(result)] = made
        return result

    def _unpack(self, results: tuple[Any, ...] | list[Any]) -> None:
        whole = len(self._alive) - 1
        for i, one in enumerate(results):
            self._made[id(one)] = len(self._alive)
            self._alive.append(one)
            self._calls.append(_Call(_item, [_Place(whole), i], {}, len(self._alive) - 1))

    def plan(self, outputs: Mapping[str, Tensor]) -> Plan:
        """The recorded calls as a plan that gives `outputs`, with places assigned."""
        wanted = {name: self._made[id(tensor)] for name, tensor in outputs.items()}
        last_use = {call.made: i for i, call in enumerate(self._calls)}
        for i, call in enumerate(self._calls):
            last_use |= dict.fromkeys(call.reads(), i)
        last_use |= dict.fromkeys(wanted.values(), len(self._calls))
        return _assign(self._calls, last_use, wanted)

    def _link(self, value: Any) -> Any:
        if isinstance(value, Tensor) and id(value) in self._made:
            return _Place(self._made[id(value)])
        if isinstance(value, (tuple, list)) and any(id(v) in self._made for v in value):
            raise NotImplementedError("a recorded call takes tensors one by one, not in a list")
        return value


class _Place(NamedTuple):
    """Stands for the tensor that call number `made` gave."""

    made: int


class _Call(NamedTuple):
    function: Callable[..., Any]
    args: list[Any]
    kwargs: dict[str, Any]
    made: int

    def reads(self) -> set[int]:
        return {v.made for v in (*self.args, *self.kwargs.values()) if isinstance(v, _Place)}


def _item(values: Any, index: int) -> Any:
    return values[index]


def _assign(calls: list[_Call], last_use: dict[int, int], wanted: dict[str, int]) -> Plan:
    place: dict[int, int] = {}
    free: list[int] = []
    steps: list[_Step] = []
    for i, call in enumerate(calls):
        args, kwargs = call.args, call.kwargs
        inputs = tuple((at, place[a.made]) for at, a in enumerate(args) if isinstance(a, _Place))
        named = tuple((k, place[v.made]) for k, v in kwargs.items() if isinstance(v, _Place))
        constants = [None if isinstance(a, _Place) else a for a in args]
        fixed = {k: v for k, v in kwargs.items() if not isinstance(v, _Place)}
        free.extend(place[made] for made in call.reads() if last_use[made] == i)
        place[call.made] = free.pop() if free else len(set(place.values()))
        steps.append(_Step(call.function, constants, fixed, inputs, named, place[call.made]))
        if last_use[call.made] == i:
            free.append(place[call.made])
    places = len(set(place.values()))
    return Plan(tuple(steps), places, {name: place[made] for name, made in wanted.items()})


def record(forward: Callable[[], dict[str, Tensor]]) -> tuple[Plan, dict[str, Tensor]]:
    """Run `forward` once, noting its calls: (plan, what it returned)."""
    recorder = Recorder()
    with torch.inference_mode(), recorder:
        outputs = forward()
    return recorder.plan(outputs), outputs
