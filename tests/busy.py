"""What is said on a busy host only, and is true there."""
import re


def without_slow_ranks(err):
    """stderr without the warnings of ranks that the others waited for."""
    said = r"^tern: warn: rank \d+ \(.+, pid \d+\) is slow: the others waited \d+ % of the last \d+ steps for it\n"
    return re.sub(said, "", err, flags=re.M)
