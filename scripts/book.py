#!/usr/bin/env python3
"""A preprocessor of mdBook (book.toml): adds what docs/SUMMARY.md does not list.

- Each decision (NNN-title.md) becomes a page below docs/decisions/index.md.
- Links to files outside docs/ become text, since the book does not contain those files.

Protocol: https://rust-lang.github.io/mdBook/for_developers/preprocessors.html
"""

import json
import re
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"
INDEX = "decisions/index.md"
OUTSIDE = re.compile(r"\[([^\]]*)\]\((?:\.\./)+(?:crates|tools|bpf|scripts|packaging|[A-Z]+\.md)[^)]*\)")


def chapter(path, below):
    """Returns the chapter of a decision."""
    content = path.read_text()
    title = re.match(r"#+ *(.*)", content)
    name = str(path.relative_to(DOCS))
    return {
        "Chapter": {
            "name": title.group(1) if title else path.stem,
            "content": content,
            "number": None,
            "sub_items": [],
            "path": name,
            "source_path": name,
            "parent_names": below,
        }
    }


def visit(items):
    for item in items:
        if (it := item.get("Chapter") if isinstance(item, dict) else None) is None:
            continue
        visit(it["sub_items"])
        if it["path"] == INDEX and not it["sub_items"]:
            below = it["parent_names"] + [it["name"]]
            pages = sorted((DOCS / INDEX).parent.glob("[0-9]*.md"))
            it["sub_items"] = [chapter(page, below) for page in pages]
            visit(it["sub_items"])
        it["content"] = OUTSIDE.sub(r"\1", it["content"])


def main():
    if sys.argv[1:2] == ["supports"]:
        return
    _, book = json.load(sys.stdin)
    visit(book["sections"])
    json.dump(book, sys.stdout)


main()
