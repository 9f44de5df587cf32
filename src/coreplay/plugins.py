"""Plugins: selectors, algorithms, tasks and sources in files or modules of the user's own.

A plugin is named by a run or sweep file, or on the command line: as the path of a .py file, or as the name of a module
that Python can import. Its code runs for no other reason: to read a folder with runs does not load what lies in it.
A file is kept with the run, so that the run can be resumed, and sent to worker processes and clients, as text.
"""

import hashlib
import re
import sys
import warnings
from collections.abc import Iterable, Mapping
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
    """A file of the user's own: where it was read, and what it says."""

    path: str
    text: str

    @property
    def name(self) -> str:
        """The name of the file, by which a process knows one plugin at most."""
        return Path(self.path).name

    @property
    def module(self) -> str:
        """The name of its module: the same for the same text in a file of the same name, wherever that is."""
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
        resolved = resolve(name, base)
        before = len(own)
        if resolved.endswith(".py"):
            fresh = _execute(_read(resolved))
        else:
            fresh = resolved not in sys.modules
            _import(resolved)
        if fresh and len(own) == before:
            decorators = "selector, coordination_method, algorithm, continual_method, task or source"
            warnings.warn(
                f"plugin {name!r} registers nothing: decorate what it defines with coreplay's {decorators}",
                PluginWarning,
                stacklevel=2,
            )


def loaded_plugins() -> tuple[Plugin, ...]:
    """Return the files that are loaded in this process, for another one to `load_again`."""
    return tuple(_loaded.values())


def load_again(plugins: Iterable[Plugin]) -> None:
    """Load what another process has loaded, whatever has become of the files."""
    for plugin in plugins:
        _execute(plugin)


def plugin_sources(names: Iterable[str], base: Path | str = ".") -> dict[str, str]:
    """Return the text of each plugin that is a file, by the file's name, without running it.

    What is loaded counts as it was when it was loaded.
    """
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
    """Write the files among the plugins to the folder's `plugins`; return all names as the folder's own file says them.

    A file that is there already is kept as it is; if it differs, that is an error.
    """
    names = list(dict.fromkeys(resolve(name) for name in names))
    _write(plugin_sources(names), folder / FOLDER)
    return [f"{FOLDER}/{Path(name).name}" if name.endswith(".py") else name for name in names]


def check_same_plugins(kept: Iterable[str], named: Iterable[str], folder: Path) -> None:
    """Raise an `InputError` if the run in a folder has kept other plugins than those that are named now."""
    old, new = _contents(kept), _contents(named)
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            how = "with another version of" if name in old and name in new else "without" if name in new else "with"
            raise InputError(
                f"the run in {str(folder)!r} was begun {how} plugin {name!r}: use the plugins in "
                f"{str(folder / FOLDER)!r}, or choose another folder for a new run"
            )


def _contents(names: Iterable[str]) -> dict[str, str]:
    names = list(names)
    return plugin_sources(names) | {name: "" for name in names if not name.endswith(".py")}


def load_sources(sources: Mapping[str, str], folder: Path) -> None:
    """Write the texts that `plugin_sources` has returned somewhere else to files in a folder, and load them.

    They replace other plugins of the same names, which this process has loaded for another run.
    """
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
    known = _loaded.get(plugin.name)
    if known is not None and known.text == plugin.text:
        return False
    if known is not None and known.path == plugin.path:
        raise InputError(f"plugin {plugin.path!r} has changed since this process loaded it: start the program again")
    if known is not None:
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


def _import(name: str) -> None:
    try:
        import_module(name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and (name + ".").startswith(f"{error.name}."):
            raise InputError(
                f"there is no module {error.name!r} to import for plugin {name!r}: install it, or name a .py file"
            ) from None
        forget(name)
        raise _failed(name, error, f"/{name.replace('.', '/')}") from None


def _failed(name: str, error: BaseException, file: str) -> InputError:
    """Say what went wrong in a plugin, and in which of its lines."""
    lines = [frame.lineno for frame in extract_tb(error.__traceback__) if file in frame.filename]
    line = error.lineno if isinstance(error, SyntaxError) else next(reversed(lines), None)
    what = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
    return InputError(f"plugin {name!r} can't be loaded{f', line {line}' if line else ''}: {what}")
