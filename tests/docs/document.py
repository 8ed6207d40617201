"""Reads the parts of a Markdown page that the tests check: code blocks, programs, terminal sessions, tables,
links."""
import os
import re

SOURCE = os.environ["TERN_SOURCE"]


def read(name):
    with open(os.path.join(SOURCE, name)) as file:
        return file.read()


def pages():
    """Returns the paths of all pages: docs/, the README in both languages, the changelog."""
    docs = [os.path.join("docs", name) for name in sorted(os.listdir(os.path.join(SOURCE, "docs"))) if name.endswith(".md")]
    return docs + ["README.md", "README.zh-CN.md", "CHANGELOG.md"]


def blocks(page):
    """Returns [(language, text)] of all fenced blocks."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", page, re.M | re.S)


def programs(page):
    """Returns {file: text} of the blocks whose first line is a comment with a file's name."""
    named = re.compile(r"(?:# |/\* )(\w+\.(?:py|c))(?: \*/)?$")
    heads = [(named.match(text.splitlines()[0]), text) for _, text in blocks(page) if text]
    return {head.group(1): text for head, text in heads if head}


def excerpts(page):
    """Returns [(path, lines)] of the blocks whose first line names the file that they quote. "..." marks
    omitted lines."""
    found = [re.match(r"/\* from (\S+) \*/\n(.*)", text, re.S) for _, text in blocks(page)]
    return [(match.group(1), match.group(2).splitlines()) for match in found if match]


def sessions(page):
    """Returns [[(command, output)]] of all console blocks."""
    return [[tuple(part.split("\n", 1)) for part in re.split(r"^\$ ", text, flags=re.M)[1:]]
            for language, text in blocks(page) if language == "console"]


def same(printed, expected):
    """Returns true if the texts are equal, but for numbers that differ by at most ten units of the last digit
    shown."""
    number = r"-?\d+\.\d+"
    if re.sub(number, "N", printed) != re.sub(number, "N", expected):
        return False
    pairs = zip(re.findall(number, printed), re.findall(number, expected))
    return all(abs(float(a) - float(b)) <= 10.5 * 10.0 ** -len(b.split(".")[1]) for a, b in pairs)


def rows(page):
    """Returns [[cell]] of the rows of all tables, without the header rows."""
    lines = [re.split(r"(?<!\\)\|", line)[1:-1] for line in page.splitlines() if line.startswith("|")]
    rules = [i for i, cells in enumerate(lines) if all(set(cell.strip()) == {"-"} for cell in cells)]
    heads = set(rules) | {i - 1 for i in rules}
    return [cells for i, cells in enumerate(lines) if i not in heads]


def code(text):
    """Returns the texts in backquotes, outside of fenced blocks."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S))


def anchors(page):
    """Returns the anchors that GitHub makes of the headings."""
    prose = re.sub(r"^```.*?^```$", "", page, flags=re.M | re.S)
    heads = re.findall(r"^#+ (.*)$", prose, re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def links(page):
    """Returns [(file or "", anchor or "")] of all links within the repository."""
    targets = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"^```.*?^```$", "", page, flags=re.M | re.S))
    return [(target + "#").split("#")[:2] for target in targets if "://" not in target]
