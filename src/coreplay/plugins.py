"""Plugins: selectors, algorithms, tasks and sources in the user's own files or modules.

A run or sweep file or the command line names a plugin: the path of a .py file, or a module that Python can import. Its
code runs for no other reason: reading a folder with runs does not load the plugins in it. A file is kept with the run,
so that the run can be resumed, and is sent to worker processes and clients as text.
"""

import hashlib
import re
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from traceback import extract_tb
from types import ModuleType

from coreplay.errors import InputError
from coreplay.files import make_folder, read_text, write_text
from coreplay.registry import PluginWarning, forget, origins, own

FOLDER = "plugins"  # of a run or sweep: the plugins that it needs
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


@dataclass(frozen=True)
class Plugin:
    """The path and the text of a user's file."""

    path: str
    text: str

    @property
    def name(self) -> str:
        """The name of the file, which no other plugin of the process has."""
        return Path(self.path).name

    @property
    def module(self) -> str:
        """The name of its module, which depends on the name of the file and the text, not on the folder."""
        digest = hashlib.blake2b(self.text.encode(), digest_size=6).hexdigest()
        return f"coreplay_plugin_{re.sub(r'[^a-zA-Z0-9]+', '_', Path(self.path).stem)}_{digest}"


_loaded: dict[str, Plugin] = {}  # by the name of the file


def resolve(name: str, base: Path | str = ".") -> str:
    """Return the absolute path of a plugin that is a file beside `base`; the name of a module as it is.

    >>> resolve("/home/ann/facility.py"), resolve("package.facility")
    ('/home/ann/facility.py', 'package.facility')
    """
    path = Path(base).absolute() / Path(name).expanduser()
    if path.suffix == ".py":
        return str(path)
    if path.exists() or not _MODULE.fullmatch(name):
        raise InputError(f"plugin {name!r} is neither a .py file nor the name of a module: name one of them")
    return name


def load_plugins(names: Iterable[str], base: Path | str = ".") -> None:
    """Import plugins, each once per process, so that what they register is known; paths are relative to `base`."""
    for name in names:
        resolved, before = resolve(name, base), len(own)
        fresh = _execute(_read(resolved)) if resolved.endswith(".py") else _import(resolved)
        if fresh and len(own) == before:
            decorators = "selector, coordination_method, algorithm, continual_method, task or source"
            text = f"plugin {name!r} registers nothing: decorate what it defines with coreplay's {decorators}"
            warnings.warn(text, PluginWarning, stacklevel=2)


def loaded_plugins() -> tuple[Plugin, ...]:
    """Return the files that this process has loaded, so that another process can `load_again` them."""
    return tuple(_loaded.values())


def load_again(plugins: Iterable[Plugin]) -> None:
    """Load what another process has loaded, even if the files are gone."""
    for plugin in plugins:
        _execute(plugin)


def plugin_sources(names: Iterable[str], base: Path | str = ".") -> dict[str, str]:
    """Return the text of each plugin that is a file, as it was loaded, by the file's name; does not run it."""
    found: dict[str, str] = {}
    for path in (resolve(name, base) for name in names):
        if not path.endswith(".py"):
            continue
        known = _loaded.get(Path(path).name)
        plugin = known if known is not None and known.path == path else _read(path)
        if found.setdefault(plugin.name, plugin.text) != plugin.text:
            raise InputError(f"two different plugins are called {plugin.name!r}: rename one of the files")
    return found


def keep_plugins(names: Iterable[str], folder: Path) -> list[str]:
    """Copy the files among the plugins to the folder's `plugins`; return all names, relative to the folder.

    A different file that is there already is an error.
    """
    names = list(dict.fromkeys(resolve(name) for name in names))
    _write(plugin_sources(names), folder / FOLDER)
    return [f"{FOLDER}/{Path(name).name}" if name.endswith(".py") else name for name in names]


def check_same_plugins(kept: Sequence[str], named: Sequence[str], folder: Path) -> None:
    """Raise an `InputError` if the run in a folder has kept other plugins than those that are named now."""
    old, new = (
        plugin_sources(names) | {name: "" for name in names if not name.endswith(".py")} for names in (kept, named)
    )
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            how = "with another version of" if name in old and name in new else "without" if name in new else "with"
            raise InputError(
                f"the run in {str(folder)!r} was begun {how} plugin {name!r}: use the plugins in "
                f"{str(folder / FOLDER)!r}, or choose another folder for a new run"
            )


def load_sources(sources: Mapping[str, str], folder: Path) -> None:
    """Write texts of `plugin_sources` to files in a folder and load them, in place of loaded plugins of these names."""
    _write(sources, folder)
    for name, text in sources.items():
        if name in _loaded and _loaded[name].text != text:
            forget(_loaded.pop(name).module)
    load_plugins(sources, folder)


def _write(sources: Mapping[str, str], folder: Path) -> None:
    for name, text in sources.items():
        path = folder / name
        if Path(name).name != name or path.suffix != ".py":
            raise InputError(f"plugin {name!r} must be the plain name of a .py file")
        if not path.exists():
            make_folder(folder)
            write_text(path, text)
        elif read_text(path) != text:
            raise InputError(f"another plugin called {name!r} is in {str(folder)!r}: rename yours, or delete that one")


def _read(path: str) -> Plugin:
    if not Path(path).is_file():
        raise InputError(f"plugin {path!r} does not exist: name a .py file, relative to the file that names it")
    return Plugin(path, read_text(path))


def _execute(plugin: Plugin) -> bool:
    """Run the file as a module, unless that was done already; return whether it was run."""
    if (known := _loaded.get(plugin.name)) is not None:
        if known.text == plugin.text:
            return False
        if known.path == plugin.path:
            raise InputError(f"plugin {known.path!r} has changed since this process loaded it: start the program again")
        raise InputError(
            f"plugin {plugin.path!r} differs from {known.path!r}, which has the same name and is loaded already: use "
            "one of the two, or rename one"
        )
    module = ModuleType(plugin.module)
    module.__file__ = plugin.path
    sys.modules[plugin.module], origins[plugin.module] = module, plugin.path
    try:
        exec(compile(plugin.text, plugin.path, "exec"), vars(module))
    except (Exception, SystemExit) as error:
        forget(plugin.module)
        del sys.modules[plugin.module]
        raise _failed(plugin.path, error, plugin.path) from None
    _loaded[plugin.name] = plugin
    return True


def _import(name: str) -> bool:
    """Import the module; return whether that was not done already."""
    fresh = name not in sys.modules
    try:
        import_module(name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and (name + ".").startswith(f"{error.name}."):
            raise InputError(
                f"there is no module {error.name!r} to import for plugin {name!r}: install it, or name a .py file"
            ) from None
        forget(name)
        raise _failed(name, error, f"/{name.replace('.', '/')}") from None
    return fresh


def _failed(name: str, error: BaseException, file: str) -> InputError:
    """Say what went wrong in a plugin, and in which of its lines."""
    lines = [frame.lineno for frame in extract_tb(error.__traceback__) if file in frame.filename]
    line = error.lineno if isinstance(error, SyntaxError) else next(reversed(lines), None)
    what = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
    return InputError(f"plugin {name!r} can't be loaded{f', line {line}' if line else ''}: {what}")
