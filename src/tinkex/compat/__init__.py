"""The official package's module names, with Tinkex behind them.

A script that says `import tinker` runs unchanged after

```python
import tinkex.compat

tinkex.compat.install()
```

or as `python -m tinkex.compat script.py`. Nothing is installed by importing this package, and an
installed `tinker` is never replaced unless the caller says so.
"""

from __future__ import annotations

from tinkex.compat.installing import install, is_installed, uninstall

__all__ = ["install", "is_installed", "uninstall"]
