#!/usr/bin/env python3
"""Counts how Tidewall's English breaks the rules that can be counted.

language.py                  counts of the whole tree; fails where a bar is passed
language.py --list [FILE]... every finding, as FILE:LINE: RULE: SENTENCE
language.py --lengths [FILE]... words per sentence, for each file: count, median, p90, longest

It reads documents (*.md) and the comments of Rust, C, shell, Python and make. It does not
read strings in code.
"""

import argparse
import re
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# A rule: its name, the pattern of a sentence that breaks it, and how many the tree may have.
RULES = [
    ("headless", re.compile(r"^(Who|What|Whoever|Of)\b(?!.*\?$)"), 30),
    ("where", re.compile(r"^Where(ver)?\b(?!.*\?$)"), 20),
    ("genitive", re.compile(r"\b(of|for|to|in|by) (the|a|an|its|their|this|that|each) [a-z-]+'s([.,;:)]|$)", re.I), 10),
    ("genitive", re.compile(r"\bof (TCP|UDP|Linux|theirs|ours|hers|his)'s\b|\bof (theirs|ours)\b", re.I), 10),
    ("person", re.compile(r"\b(nobody|somebody|whoever|anybody|everybody)\b", re.I), 20),
]
# Sentences longer than this are long.
LONG = 25
LONG_BAR = 450
# Documents: median and 90th percentile of the words of a sentence.
MEDIAN_BAR, P90_BAR = 16, 28
README_WORDS, README_LONGEST = 900, 30


def files(names):
    """Yields the tree's files that have prose, or those of `names`."""
    if not names:
        listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
        names = listed.stdout.splitlines()
    for name in names:
        path = (ROOT / name).resolve() if not Path(name).exists() else Path(name)
        if path.suffix in (".md", ".rs", ".c", ".h", ".sh", ".py", ".toml") or path.name in ("Makefile", "run"):
            if path.is_file() and "__fuzz__" not in path.parts:
                yield name, path


RUST = re.compile(
    r"""(?P<line>//[^\n]*)|(?P<block>/\*.*?\*/)|b?r(?P<h>\#*)".*?"(?P=h)|b?"(?:\\.|[^"\\])*"|b?'(?:\\[^\n]{1,12}?|[^'\\\n])'""",
    re.S | re.X,
)


def rust_comments(text):
    """Yields lines of comments as (number, text, kind); skips strings."""
    for match in RUST.finditer(text):
        number = text.count("\n", 0, match.start()) + 1
        if line := match.group("line"):
            body = re.match(r"//[/!]?", line).group()
            yield number, line[len(body):], body
        elif block := match.group("block"):
            for i, line in enumerate(block[2:-2].split("\n")):
                yield number + i, re.sub(r"^\s*\*+ ?", " ", line), "/*"


def hash_comments(text):
    for number, line in enumerate(text.split("\n"), 1):
        if match := re.match(r"\s*(#+)(?!!)(.*)", line):
            yield number, match.group(2), "#"


def paragraphs(path):
    """Yields paragraphs, list items and table cells as (number of the first line, text)."""
    text = path.read_text(errors="replace")
    if path.suffix == ".md":
        lines = [(n, line, "") for n, line in enumerate(text.split("\n"), 1)]
    elif path.suffix in (".rs", ".c", ".h"):
        lines = list(rust_comments(text))
    else:
        lines = list(hash_comments(text))
    start, held, kind_before, before, fenced = 0, [], None, -1, False
    for number, line, kind in lines:
        bare = line.strip()
        if kind != kind_before or number > before + 1:
            if held:
                yield start, " ".join(held)
            held, fenced = [], False
        kind_before, before = kind, number
        if bare.startswith("```"):
            fenced = not fenced
            bare = ""
        elif fenced:
            continue
        if bare.startswith("|"):
            if held:
                yield start, " ".join(held)
            held = []
            for cell in re.split(r"(?<!\\)\|", bare.strip("|")):
                if re.search(r"[a-z]", cell):
                    yield number, cell.strip()
            continue
        item = re.match(r"(?:[-*+]|\d+\.)\s+", bare)
        if not bare or bare.startswith("#") or item:
            if held:
                yield start, " ".join(held)
            held = []
            if not bare or bare.startswith("#"):
                continue
            bare = bare[item.end():]
        if not held:
            start = number
        held.append(bare)
    if held:
        yield start, " ".join(held)


CODE = re.compile(r"``.*?``|`[^`]*`")
LINK = re.compile(r"!?\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])")
ABBREVIATED = re.compile(r"\b(e\.g|i\.e|cf|vs|etc|Fig|Sec|No|St|al|approx|RFC [0-9]+)\.$")


def sentences(paragraph):
    """Yields a paragraph's sentences, with one word per code span."""
    text = CODE.sub(lambda m: "`" + re.sub(r"[.!?:;\s]", "_", m.group().strip("`")) + "`", paragraph)
    text = LINK.sub(r"\1", text).replace("**", "").replace("__", "")
    text = re.sub(r"\s+", " ", text)
    begun = 0
    for match in re.finditer(r"[.!?:]['\")\]]*\s+(?=[\"'(\[`*_]*[A-Z0-9`])", text):
        piece = text[begun:match.start() + 1]
        if ABBREVIATED.search(piece) or (match.group()[0] == ":" and not text[match.end():][:1].isupper()):
            continue
        yield text[begun:match.end()].strip()
        begun = match.end()
    if rest := text[begun:].strip():
        yield rest


def words(sentence):
    return len(re.findall(r"[A-Za-z0-9`][^\s]*", sentence))


def findings(name, path):
    for number, paragraph in paragraphs(path):
        for sentence in sentences(paragraph):
            bare = re.sub(r"^[\s*_(\"'`-]+", "", sentence)
            for rule, pattern, _ in RULES:
                if pattern.search(bare):
                    yield number, rule, sentence
            if words(sentence) > LONG:
                yield number, "long", sentence


def lengths(path):
    return sorted(
        count for _, paragraph in paragraphs(path) for s in sentences(paragraph) if (count := words(s)) > 2
    )


def percentile(sorted_values, share):
    return sorted_values[min(len(sorted_values) - 1, int(len(sorted_values) * share))] if sorted_values else 0


def report():
    """Prints counts with their limits. Returns whether all hold."""
    bars = {rule: bar for rule, _, bar in RULES} | {"long": LONG_BAR}
    counts = dict.fromkeys(bars, 0)
    in_docs, readme = [], []
    for name, path in files([]):
        for _, rule, _ in findings(name, path):
            counts[rule] += 1
        if name.startswith("docs/"):
            in_docs += lengths(path)
        if name == "README.md":
            readme = lengths(path)
    in_docs.sort()
    rows = [(f"sentences: {rule}", counts[rule], bar) for rule, bar in bars.items()]
    rows += [
        ("docs: median words of a sentence", int(statistics.median(in_docs)), MEDIAN_BAR),
        ("docs: 90th percentile", percentile(in_docs, 0.9), P90_BAR),
        ("README: words", len((ROOT / "README.md").read_text().split()), README_WORDS),
        ("README: longest sentence, in words", readme[-1], README_LONGEST),
    ]
    held = True
    for what, count, bar in rows:
        missed = count > bar
        held &= not missed
        print(f"{what:36} {count:6}  at most {bar:6}{'   <- too many; see `scripts/language.py --list`' if missed else ''}")
    return held


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print every finding")
    parser.add_argument("--lengths", action="store_true", help="print the words per sentence of each file")
    parser.add_argument("files", nargs="*")
    options = parser.parse_args()
    if options.list:
        for name, path in files(options.files):
            for number, rule, sentence in findings(name, path):
                print(f"{name}:{number}: {rule}: {sentence}")
    elif options.lengths:
        for name, path in files(options.files):
            if found := lengths(path):
                print(f"{name}: {len(found)} sentences, median {int(statistics.median(found))}, p90 {percentile(found, 0.9)}, longest {found[-1]}")
    else:
        sys.exit(0 if report() else 1)


if __name__ == "__main__":
    main()
