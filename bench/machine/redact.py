"""What never stands in a file: values whose names look like those of credentials."""

import re
from collections.abc import Sequence

SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "AUTH", "COOKIE")
HIDDEN = "***"

_IN_ADDRESS = re.compile(r"(?<=://)[^/@\s]+(?=@)")
"""User and password in front of a host name."""


def is_secret(name: str) -> bool:
    """Whether a variable or an option of this name may hold a credential."""
    return any(word in name.upper() for word in SECRET_WORDS)


def without_address_secrets(text: str) -> str:
    """``text`` with the user and password of every address in it hidden."""
    return _IN_ADDRESS.sub(HIDDEN, text)


def command_line(words: Sequence[str]) -> list[str]:
    """A command line as it may be kept: ``NAME=value`` and ``--name value`` of a secret's name lose the value."""
    kept: list[str] = []
    hide_next = False
    for word in words:
        name, equals, _ = word.partition("=")
        if hide_next and not word.startswith("-"):
            kept.append(HIDDEN)
        elif equals and is_secret(name):
            kept.append(f"{name}={HIDDEN}")
        else:
            kept.append(without_address_secrets(word))
        hide_next = word.startswith("-") and not equals and is_secret(word)
    return kept
