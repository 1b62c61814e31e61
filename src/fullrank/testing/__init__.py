"""Component checks: what is true of every component of a room, for tests here and for people who write components.

A test of a component of yours is one line, ``check_component(EluLinear)``: it builds the component
in every setting that is near its defaults and runs the checks of its room. No test runner is
needed. With pytest, `checks` gives each check a name of its own::

    @pytest.mark.parametrize(("name", "check"), checks(EluLinear))
    def test_elu_linear(name, check):
        check("cpu")

A room is a module of this package with a tuple ``CHECKS`` of functions ``check(spec, device)``,
each of which raises AssertionError with what it saw, and the base class of its Specs, ``BASE``. The
checks of `settings` hold for the Specs of every room.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fullrank.core.errors import UserError, unknown
from fullrank.core.registry import find, kinds
from fullrank.core.spec import Spec
from fullrank.metrics import Metric
from fullrank.testing.inputs import Check, Device, example

ROOMS = (
    "attention",
    "encoders",
    "reasoning",
    "items",
    "objectives.tasks",
    "objectives.losses",
    "objectives.weightings",
    "regularizers",
    "baselines",
    "rankers",
    "rankers.sequences",
)
"""Rooms with checks, in this package's module of the last part of the room's name."""
DIAGNOSTICS, METRICS = "diagnostics", "metrics"
"""The rooms whose components are no Specs, for they have no settings: classes, and functions."""


def check_component(spec: type[Any] | Spec | Metric, *, room: str | None = None, device: Device = "cpu") -> None:
    """Run every check of a component's room. AssertionError with the name of the check and what was seen.

    A class is checked from its defaults; where these do not suffice to build it, give an instance.
    A class that is no Spec is a diagnostic (`fullrank.analysis.diagnostics`), a function a metric
    of lists (`fullrank.metrics`). The room of a Spec follows from its entry point or its base
    class; name it where there is neither. Raises `UserError` for a room without checks.
    """
    for name, check in checks(spec, room=room):
        try:
            check(device)
        except AssertionError as error:
            who = spec.kind_of() if hasattr(spec, "kind_of") else getattr(spec, "__name__", spec)  # a diagnostic
            raise AssertionError(f"{who}, check {name!r}: {error}") from error


def checks(spec: type[Any] | Spec | Metric, *, room: str | None = None) -> list[tuple[str, Callable[..., None]]]:
    """(name, check) of everything true of the component; ``check(device="cpu")`` runs one."""
    if isinstance(spec, Spec):
        base = spec
    elif isinstance(spec, type) and issubclass(spec, Spec):
        base = example(spec)
    else:
        room_checks = checks_of(DIAGNOSTICS if isinstance(spec, type) else METRICS)
        return [(name_of(check), _on_device(check, spec)) for check in room_checks]
    room_checks = (*checks_of("settings"), *checks_of(room or room_of(type(base))))
    return [(name_of(check), _on_device(check, base)) for check in room_checks]


def checks_of(room: str) -> tuple[Check, ...]:
    """The checks of a room, of `diagnostics`, of `metrics`, or of every Spec (`settings`)."""
    if room not in (*ROOMS, "settings", DIAGNOSTICS, METRICS):
        raise unknown("room", room, (*ROOMS, DIAGNOSTICS, METRICS))
    return _module(room).CHECKS


def name_of(check: Check) -> str:
    """`causal` for `check_causal`."""
    return str(check.__name__).removeprefix("check_")


def room_of(spec: type[Spec]) -> str:
    """The room that finds this Spec by its kind, or else whose base class it has."""
    kind = spec.kind_of()
    for room in ROOMS:
        if kind in kinds(room) and find(kind, room) is spec:
            return room
    for room in ROOMS:
        if issubclass(spec, _module(room).BASE):
            return room
    raise UserError(
        f"{spec.__name__} belongs to no room with checks: no entry point names it and it has no room's base class; "
        f"say room=..., one of {', '.join(ROOMS)}",
        code="room-not-found",
    )


def _module(room: str) -> Any:
    """Imported when its room is checked: a check of one room needs no other."""
    return importlib.import_module(f"{__name__}.{room.rpartition('.')[2]}")


def _on_device(check: Check, spec: Any) -> Callable[..., None]:
    def run(device: Device = "cpu") -> None:
        with _repeatable():
            check(spec, torch.device(device))

    return run


@contextmanager
def _repeatable() -> Iterator[None]:
    """Fixed draws, products in full precision, and the caller's generators left as they are."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    with torch.random.fork_rng():
        torch.manual_seed(0)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        try:
            yield
        finally:
            torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
