"""How a model that generates semantic ids finds its items: exactly, pruned, along a graph, or by a beam of codes.

`exact` scores every item (the default, and all that other models can do). `graph` is RPG's (Sec. 3.4): from `beams`
items, `steps` times to the `edges` most similar items of each. `beam` keeps the `beams` best tuples of codes, level by
level, and looks up the items that exist. The two ask for `beams` results at least as long as the list. `pruned` gives
the exact list without scoring every item, `codes` codes at a time (RecJPQPrune), also for items that are sums of codes
(`items.kind=semantic`) under another task.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from fullrank.core.spec import Spec

DEFAULTS = {"graph": {"beams": 100, "edges": 50, "steps": 3}, "beam": {"beams": 200}, "pruned": {"codes": 8}}


class Decoding(Spec):
    """The search among items that are made of codes."""

    kind: Literal["exact", "graph", "beam", "pruned"] = "exact"
    """Score every item; walk a graph of like items; put tuples together level by level; or score the items of the best
    codes until no other can be in the list."""
    beams: int | None = Field(None, ge=1)
    """Items (graph; null is 100) or tuples of codes (beam; null is 200) kept from step to step."""
    edges: int | None = Field(None, ge=1)
    """Graph: neighbours of an item, itself among them; null is 50."""
    steps: int | None = Field(None, ge=1)
    """Graph: how often the kept items are replaced by the best of their neighbours; null is 3."""

    codes: int | None = Field(None, ge=1)
    """Pruned: codes whose items are scored before the bound is looked at again; null is 8."""

    @model_validator(mode="after")
    def _every_setting_has_an_effect(self) -> Decoding:
        own = DEFAULTS.get(self.kind, {})
        for name in ("beams", "edges", "steps", "codes"):
            if getattr(self, name) is not None and name not in own:
                raise ValueError(f"{name} has no effect with kind={self.kind}: leave it out")
        return self

    def settings(self) -> dict[str, Any]:
        """The settings of this kind, with the defaults of those that were not given."""
        own = DEFAULTS.get(self.kind, {})
        return {name: getattr(self, name) or value for name, value in own.items()}

    def described(self) -> dict[str, Any]:
        """For a result's protocol."""
        return {"kind": self.kind, **self.settings()}
