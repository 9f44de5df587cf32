"""What mkdocs does with the pages besides: fill in what is generated, and follow links that lead out of docs/.

A page that says `<!-- generated: NAME -->` gets that part from the program itself (`GENERATED`), and one that says
`<!-- included: PATH -->` gets a file of the repository. A link to a file outside docs/, which works where the
repository is viewed, leads on the site to a page with that file in it.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import typer
from mkdocs.structure.files import File
from pydantic import BaseModel

ROOT = Path(__file__).parent.parent
SOURCE = "source"  # where pages with files of the repository lie on the site
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")
LANGUAGES = {".py": "python", ".toml": "toml", ".md": "markdown"}


def on_files(files: Any, config: Any) -> Any:
    """Add a page for each file of the repository that some page links to."""
    for page in list(files.documentation_pages()):
        for target in _outside(page.src_uri, _whole(page.content_string)):
            uri = _page_of(target)
            if files.get_file_from_path(uri) is None:
                files.append(File.generated(config, uri, content=_shown(target)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Fill in what is generated, and turn links to the repository's files into links to their pages."""
    here = PurePosixPath(page.file.src_uri)

    def turned(match: re.Match[str]) -> str:
        target = _target(str(here), match[2])
        if target is None:
            return match[0]
        way = "../" * (len(here.parts) - 1) + _page_of(target)
        return f"[{match[1]}]({way}{match[3] or ''})"

    return LINK.sub(turned, _whole(markdown))


def _whole(markdown: str) -> str:
    """Return a page with its generated and included parts."""
    markdown = re.sub("<!-- generated: (.*?) -->", lambda match: GENERATED[match[1]](), markdown)
    return re.sub("<!-- included: (.*?) -->", lambda match: _included(match[1]), markdown)


def _included(path: str) -> str:
    """Return a page of the repository's top folder as one of the site: its links then start in docs/."""
    text = (ROOT / path).read_text(encoding="utf-8")
    return LINK.sub(lambda match: f"[{match[1]}](../{match[2]}{match[3] or ''})", text).replace("](../docs/", "](")


def _outside(page: str, markdown: str) -> Iterator[Path]:
    for _, link, _ in LINK.findall(markdown):
        target = _target(page, link)
        if target is not None:
            yield target


def _target(page: str, link: str) -> Path | None:
    """Return what a link leads to if that is in the repository but not in docs/."""
    place = (ROOT / "docs" / page).parent.joinpath(link).resolve()
    inside = place.is_relative_to(ROOT) and not place.is_relative_to(ROOT / "docs")
    return place.relative_to(ROOT) if inside and place.exists() else None


def _page_of(target: Path) -> str:
    known = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changes.md", "README.md": "index.md"}
    return known.get(target.as_posix(), f"{SOURCE}/{target.as_posix()}.md")


def _shown(target: Path) -> str:
    """Return a page with a file of the repository in it, or with all files of a folder."""
    place = ROOT / target
    files = sorted(f for f in place.iterdir() if f.suffix in LANGUAGES) if place.is_dir() else [place]
    parts = [f"# {target.as_posix()}"]
    for file in files:
        parts += [f"## {file.name}"] if place.is_dir() else []
        parts.append(f"``````{LANGUAGES.get(file.suffix, 'text')}\n{file.read_text(encoding='utf-8')}\n``````")
    return "\n\n".join(parts) + "\n"


@cache
def commands() -> str:
    """Return all commands with their arguments and options, as `--help` shows them."""
    from coreplay.cli.app import app

    return "\n".join(_command("coreplay", typer.main.get_command(app)))


def _command(name: str, command: Any) -> Iterator[str]:
    inner = getattr(command, "commands", {})
    if name != "coreplay":
        yield f"\n## {name}\n"
    yield f"{command.help}\n"
    rows = [_parameter(parameter) for parameter in command.params if "--help" not in parameter.opts]
    if rows:
        yield from _table(("", "meaning", "default"), rows)
    for key in inner:
        yield from _command(f"{name} {key}", inner[key])


def _parameter(parameter: Any) -> tuple[str, str, str]:
    help_text = parameter.help or ""
    if parameter.param_type_name == "argument":
        name = f"`{parameter.name.upper()}`"
    else:
        name = ", ".join(f"`{option}`" for option in parameter.opts)
    meaning, _, given = help_text.partition("  [default: ")
    default = parameter.default
    if given:
        shown = given.removesuffix("]")
    elif parameter.required:
        shown = "needed"
    elif default is None or default is False or callable(default) or not isinstance(default, str | int | float | Path):
        shown = ""
    else:
        shown = f"`{default}`"
    return name, meaning, shown


@cache
def configuration() -> str:
    """Return all fields of a configuration, section by section, and the presets."""
    from coreplay.runtime import PRESETS, Config

    lines = ["## The top of the file", "", *_fields(Config), ""]
    for name, field in Config.model_fields.items():
        default = field.get_default(call_default_factory=True)
        if isinstance(default, BaseModel):
            part = type(default)
            lines += [f"## [{name}]", "", part.__doc__ or "", "", *_fields(part), ""]
    lines += ["## Presets", "", 'What `preset = "NAME"` at the top of a file stands for; the rest changes it.', ""]
    for name, values in PRESETS.items():
        lines += [f"### {name}", "", "```json", json.dumps(values, indent=2), "```", ""]
    return "\n".join(lines)


def _fields(part: Any) -> Iterator[str]:
    rows = []
    for name, field in part.model_fields.items():
        default = field.get_default(call_default_factory=True)
        if isinstance(default, BaseModel):
            continue
        meaning, _, paper = (field.description or "").partition(" Paper: ")
        shown = "absent" if default is None else f"`{json.dumps(default)}`"
        rows.append((f"`{name}`", meaning, shown, paper.removesuffix(".")))
    return _table(("field", "meaning", "default", "the paper's value"), rows)


@cache
def names() -> str:
    """Return what can be named in a configuration, from the registries, with the options of each."""
    from coreplay.coordination.method import _registry as coordinations
    from coreplay.data.sources import _registry as sources
    from coreplay.learning.hooks import _algorithms as algorithms
    from coreplay.learning.hooks import _continual as continual
    from coreplay.selection.api import _registry as selectors
    from coreplay.tasks import _registry as tasks

    lines: list[str] = []
    for field, registry in (
        ("stream.source", sources),
        ("task.name", tasks),
        ("federated.algorithm", algorithms),
        ("continual.methods", continual),
        ("replay.strategy: selectors", selectors),
        ("replay.strategy: coordination methods", coordinations),
    ):
        found = registry.descriptions().items()
        rows = [(f"`{name}`", text, ", ".join(_options(registry[name]))) for name, text in found]
        lines += ["", f"### {field}", "", *_table(("name", "what it does", "options and their defaults"), sorted(rows))]
    return "\n".join(lines)


@cache
def methods() -> str:
    """Return what each algorithm and continual method needs, read off its class."""
    from coreplay.learning.hooks import LearningHook, _algorithms, _continual

    def changed(kind: Any, hook: str) -> bool:
        return getattr(kind, hook) is not getattr(LearningHook, hook)

    rows = []
    for registry in (_algorithms, _continual):
        for name in sorted(registry.descriptions()):
            kind: Any = registry[name]
            down = ["the model of the period's start"] * kind.needs_period_start
            down += ["what `broadcast` returns"] * changed(kind, "broadcast")
            up = [f"`{key}` per round" for key in kind.round_sums] + [f"`{key}` per period" for key in kind.period_sums]
            stored = "yes" if changed(kind, "keep") else "no"
            state = "yes" if kind.keeps_state else "no"
            parts = (", ".join(down) or "nothing", ", ".join(up) or "nothing")
            rows.append((f"`{name}`", state, *parts, stored, kind.extra_passes))
    head = (
        "method",
        "client state",
        "sent besides the model",
        "summed besides the change",
        "stored outputs",
        "extra work",
    )
    return "\n".join(_table(head, rows))


def _options(function: Callable[..., Any]) -> Iterator[str]:
    from coreplay.registry import keywords

    for name, parameter in keywords(function).items():
        needed = parameter.default is parameter.empty
        yield f"`{name}`" if needed or parameter.default is None else f"`{name}={parameter.default!r}`"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "| " + " | ".join("---" for _ in head) + " |"
    for row in rows:
        yield "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |"


GENERATED: dict[str, Callable[[], str]] = {
    "commands": commands,
    "configuration": configuration,
    "names": names,
    "methods": methods,
}
