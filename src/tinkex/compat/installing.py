"""Puts the module names in place, and takes them away again."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from tinkex.compat.modules import MODULES, PACKAGE, attribute, names_of
from tinkex.config.process_defaults import set_process_default, unset_process_default
from tinkex.errors import ConfigError


def install(*, replace: bool = False) -> None:
    """From now on `import tinker`, and its submodules, give Tinkex; safe to repeat.

    `replace=True` does so although the official package is installed or imported already. Names
    that were imported from it before keep leading to it, so call this first. Samples are retried
    from now on as the official client retries them (`Config.retry_samples`).

    Raises:
        ConfigError: `tinker` is installed, and `replace` was not given.
    """
    if is_installed():
        return
    if not replace and (place := _place_of_official()) is not None:
        raise ConfigError(
            f"A package named {PACKAGE!r} is installed already ({place}).",
            hint=f"Uninstall it (pip uninstall {PACKAGE}), or call install(replace=True).",
            code="tinker-is-installed",
        )
    _forget_modules()
    sys.meta_path.insert(0, _FINDER)
    # Scripts written for the official client expect that it waits for a busy server.
    set_process_default("retry_samples", True, "tinkex.compat")


def uninstall() -> None:
    """Takes the names away; what was imported by them stays usable."""
    if is_installed():
        sys.meta_path.remove(_FINDER)
        unset_process_default("retry_samples")
        _forget_modules()


def is_installed() -> bool:
    """Whether `import tinker` gives Tinkex."""
    return _FINDER in sys.meta_path


def _place_of_official() -> str | None:
    """Where a `tinker` that is not ours comes from; None if there is none."""
    try:
        spec = importlib.util.find_spec(PACKAGE)
    except ValueError:  # a module without a spec, such as one that a program made up
        return "in sys.modules"
    return None if spec is None else str(spec.origin or spec.submodule_search_locations)


def _forget_modules() -> None:
    for name in [each for each in sys.modules if each.partition(".")[0] == PACKAGE]:
        del sys.modules[name]


class _Finder(MetaPathFinder, Loader):
    """Finds the official names and makes their modules."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in MODULES:
            return None
        is_package = any(name.startswith(f"{fullname}.") for name in MODULES)
        return ModuleSpec(fullname, self, origin="tinkex.compat", is_package=is_package)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Gives the module its names, each loaded when it is first used."""
        name = module.__name__

        def get(attribute_name: str) -> object:
            submodule = f"{name}.{attribute_name}"
            if submodule in MODULES:
                return importlib.import_module(submodule)
            value = attribute(name, attribute_name)
            setattr(module, attribute_name, value)
            return value

        module.__doc__ = f"`{name}` of the official package, by Tinkex."
        module.__dict__["__getattr__"] = get
        module.__dict__["__dir__"] = lambda: sorted({*module.__dict__, *names_of(name)})
        module.__dict__["__all__"] = list(names_of(name))


_FINDER = _Finder()
