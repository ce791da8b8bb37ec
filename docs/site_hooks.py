"""What MkDocs does to the pages beyond what GitHub does: see mkdocs.yml."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

LINK = re.compile(r"\[([^\[\]]+)\]\(((?:\.\./)+[^)#\s]+)(#[^)\s]*)?\)")
IN_A_CLONE = re.compile(r"^\*In a clone.*?\*\n", re.MULTILINE | re.DOTALL)  # the site has what it points to
# Their tables need the room of the table of contents.
WIDE = {"methods/index.md", "results/every_method.md", "results/fedshrink.md"}
NOTEBOOK = re.compile(r"\.ipynb$")
TO_NOTEBOOK = re.compile(r"(\]\((?:[\w./]*/)?notebooks/\w+)\.ipynb\)")
CELL = re.compile(r"^<(tr|td)((?: [^>]*)?)>", re.MULTILINE)


def on_config(config: Any) -> Any:
    """Every method's page stands in the navigation, so that a new method needs no line in mkdocs.yml."""
    docs = Path(config.docs_dir)
    [methods] = [entry["Methods"] for entry in config.nav if "Methods" in entry]
    methods += sorted(f"methods/{p.name}" for p in docs.glob("methods/*.md") if p.name != "index.md")
    return config


def on_files(files: Any, *, config: Any) -> Any:
    """Every notebook is a page too; GitHub shows it as it is."""
    from mkdocs.structure.files import File  # the tests of this file need no MkDocs

    for notebook in [file for file in files if file.src_uri.endswith(".ipynb")]:
        text = notebook_page(json.loads(notebook.content_string), Path(notebook.src_uri).name)
        files.append(File.generated(config, NOTEBOOK.sub(".md", notebook.src_uri), content=text))
    return files


def notebook_page(notebook: Any, name: str) -> str:
    """A notebook's texts and its code as Markdown, without what the code shows."""
    parts = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
    title, _, rest = "\n\n".join(parts).partition("\n")
    about = f"*This page is [a notebook]({name}), without what its cells show: download it, and run it.*"
    return f"{title}\n\n{about}\n{rest}\n"


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
    markdown = TO_NOTEBOOK.sub(r"\1.md)", LINK.sub(outside, markdown))
    if not page.file.src_uri.startswith("methods/"):
        return markdown
    markdown = markdown.replace("\n<table>\n", '\n<table markdown="block">\n')
    return CELL.sub(r'<\1\2 markdown="block" class="equations">', markdown)
