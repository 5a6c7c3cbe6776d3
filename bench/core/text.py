"""Text from outside, such as a label or the name of a CPU, on its way to people."""

import re

_UNSEEN = re.compile(
    "[\0-\t\v-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff"
    "\ufeff\ufff9-\ufffb\ufffe\uffff\U000e0000-\U000e0fff]"
)
"""What steers a terminal or the direction of writing, shows nothing, or may not stand in XML."""


def printable(text: str) -> str:
    """``text`` with what is not to be seen as escapes such as ``\\x1b``, and white space other than line ends as
    blanks."""
    return _UNSEEN.sub(lambda found: " " if found[0].isspace() else ascii(found[0])[1:-1], text)
