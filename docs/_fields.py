"""Shows the default of a field as users see it: `sent(1.0)` is 1.0 that travels on the wire."""

from __future__ import annotations

from typing import Any

import griffe


class SentDefaults(griffe.Extension):
    """Takes the marker off the defaults of struct fields."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Called by griffe for every attribute it reads."""
        value = attr.value
        if isinstance(value, griffe.ExprCall) and str(value.function) == "sent":
            attr.value = value.arguments[0] if value.arguments else None
