"""What MkDocs does to the pages beyond what GitHub does: see mkdocs.yml."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

LINK = re.compile(r"\[([^\[\]]+)\]\(((?:\.\./)+[^)#\s]+)(#[^)\s]*)?\)")
IN_A_CLONE = re.compile(r"^\*In a clone.*?\*\n", re.MULTILINE | re.DOTALL)  # the site has what it points to
# Their tables need the room of the table of contents.
WIDE = {"methods/index.md", "results/every_method.md", "results/fedshrink.md"}
CELL = re.compile(r"^<(tr|td)((?: [^>]*)?)>", re.MULTILINE)


def on_config(config: Any) -> Any:
    """Every method's page stands in the navigation, so that a new method needs no line in mkdocs.yml."""
    docs = Path(config.docs_dir)
    [methods] = [entry["Methods"] for entry in config.nav if "Methods" in entry]
    methods += sorted(f"methods/{p.name}" for p in docs.glob("methods/*.md") if p.name != "index.md")
    return config


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Links to files outside the site, and Markdown in the tables of equations."""
    docs = Path(config.docs_dir).resolve()
    folder = (docs / page.file.src_uri).parent

    def outside(link: re.Match[str]) -> str:
        target = (folder / link[2]).resolve()
        if target.is_relative_to(docs) or not target.exists():
            return link[0]  # MkDocs checks those of the site, and fails on what does not exist
        path = target.relative_to(docs.parent).as_posix()
        if config.repo_url:
            return f"[{link[1]}]({config.repo_url}/blob/main/{path}{link[3] or ''})"
        name, colon, line = link[1].strip("`").partition(":")
        return f"`{path}{colon}{line}`" if path.endswith(name) else f"{link[1]} (`{path}`)"

    if page.file.src_uri in WIDE:
        page.meta["hide"] = ["toc"]
    if page.file.src_uri.startswith("reference/"):
        markdown = IN_A_CLONE.sub("", markdown)
    markdown = LINK.sub(outside, markdown)
    if not page.file.src_uri.startswith("methods/"):
        return markdown
    markdown = markdown.replace("\n<table>\n", '\n<table markdown="block">\n')
    return CELL.sub(r'<\1\2 markdown="block" class="equations">', markdown)
