"""`import tinker` gives Tinkex, in every process of an environment that has this distribution."""

from __future__ import annotations

import importlib

from tinkex.compat import install

# The module of tinkex.compat takes the place of this one in `sys.modules`, and the import returns
# what is there. `replace` is about this module: the official one cannot be beside it.
install(replace=True)
importlib.import_module(__name__)
