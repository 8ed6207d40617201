"""Removes warnings that are correct, but appear only on a busy host."""
import re


def without_slow_ranks(err):
    """Returns stderr without the warnings about slow ranks."""
    said = r"^tern: warn: rank \d+ \(.+, pid \d+\) is slow: the others waited \d+ % of the last \d+ steps for it\n"
    return re.sub(said, "", err, flags=re.M)
