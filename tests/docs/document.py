"""A page of Markdown as the tests see it: its blocks, the programs and terminal sessions among them, its tables and links."""
import os
import re

SOURCE = os.environ["TERN_SOURCE"]


def read(name):
    with open(os.path.join(SOURCE, name)) as file:
        return file.read()


def pages():
    """The paths of all pages: those of docs/, the README in both languages, the changelog."""
    docs = [os.path.join("docs", name) for name in sorted(os.listdir(os.path.join(SOURCE, "docs"))) if name.endswith(".md")]
    return docs + ["README.md", "README.zh-CN.md", "CHANGELOG.md"]


def blocks(page):
    """[(language, text)] of all fenced blocks."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", page, re.M | re.S)


def programs(page):
    """{file: text}: a block whose first line is a comment with the file's name."""
    named = re.compile(r"(?:# |/\* )(\w+\.(?:py|c))(?: \*/)?$")
    heads = [(named.match(text.splitlines()[0]), text) for _, text in blocks(page) if text]
    return {head.group(1): text for head, text in heads if head}


def excerpts(page):
    """[(path, lines)]: a block whose first line says what it is an excerpt of. "..." stands for lines left out."""
    found = [re.match(r"/\* from (\S+) \*/\n(.*)", text, re.S) for _, text in blocks(page)]
    return [(match.group(1), match.group(2).splitlines()) for match in found if match]


def sessions(page):
    """[[(command, what it prints)]] of all console blocks."""
    return [[tuple(part.split("\n", 1)) for part in re.split(r"^\$ ", text, flags=re.M)[1:]]
            for language, text in blocks(page) if language == "console"]


def rows(page):
    """[[cell]] of all tables, without their heads."""
    lines = [re.split(r"(?<!\\)\|", line)[1:-1] for line in page.splitlines() if line.startswith("|")]
    rules = [i for i, cells in enumerate(lines) if all(set(cell.strip()) == {"-"} for cell in cells)]
    heads = set(rules) | {i - 1 for i in rules}
    return [cells for i, cells in enumerate(lines) if i not in heads]


def code(text):
    """What stands in backquotes, without fenced blocks."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S))


def anchors(page):
    """As GitHub makes them of headings."""
    prose = re.sub(r"^```.*?^```$", "", page, flags=re.M | re.S)
    heads = re.findall(r"^#+ (.*)$", prose, re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def links(page):
    """[(file or "", anchor or "")] of all links that stay in the repository."""
    targets = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"^```.*?^```$", "", page, flags=re.M | re.S))
    return [(target + "#").split("#")[:2] for target in targets if "://" not in target]
