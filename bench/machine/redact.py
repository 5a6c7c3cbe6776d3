"""Secrets, which stand in no file: values that look like credentials, by their names or by themselves."""

import hashlib
import os
import re
from collections.abc import Sequence
from itertools import chain
from urllib.parse import unquote

HIDDEN = "***"
RECORD = "--record-command"  # the option of bench attach that has all of its command recorded

_NAME = (
    r"(?:(?<!_IB_P)KEY(?!ERROR)|TOKEN(?!S)|SECRET|PASSW|PASSPHRASE|PASSCODE|PWD|CREDENTIAL|COOKIE|SIGNATURE|JWT|WEBHOOK|AUTH(?!OR(?!I[SZ]))"
    r"|PASS(?![A-Z]|(?<=\w\sPASS):\s)|(?<![A-Z])(?:PAT|PW|CREDS?|SESSION|SIG|SAS|OTP|PSK)(?![A-Z]))"
)
"""In the name of a credential, but not: author, path, tokens, NCCL_IB_PKEY, 'backward pass: slow'."""

_VALUE = r"""(?:\\"(?:(?!\\").)*(?:\\")?|"(?:[^"\\]|\\.)*"?|'[^']*'?|\[[^\]]*\]?|\{[^}]*\}?|[^\s&"'}\]]+)"""

_SECRETS = [
    (re.compile(pattern, re.IGNORECASE | re.DOTALL), kept)
    for pattern, kept in (
        (r"-----BEGIN [^-]*-----.*?(?:-----END [^-]*-----|\Z)", HIDDEN),
        (r"((?:AUTHORIZATION|COOKIE)\\?[\"']?\s*[=:]\s*\\?[\"']?)[^\"'\\\r\n]+", rf"\1{HIDDEN}"),
        (r"\b(BEARER\s+)[^\s\"']+", rf"\1{HIDDEN}"),
        (r"\b(BASIC\s+)(?-i:(?=\S*[A-Z]\S*[A-Z]|\S*=))[^\s\"']{6,}", rf"\1{HIDDEN}"),
        (r"(?<=://)[^\s\"']{1,300}(?=@)", HIDDEN),
        (r"(?<![\w.+-])[\w.+%-]{1,64}:(?!//)[^\s\"']{1,200}@(?=[\w\[])", f"{HIDDEN}@"),
        (rf"(?<!\S)(-p[\s=]+(?!\d+\b)|-u\s+(?=\S+:)){_VALUE}", rf"\1{HIDDEN}"),
        (rf"(?<![\w-])(--?[\w-]{{0,64}}{_NAME}[\w-]{{0,64}}(?:\s+|[\"'],\s*)(?!-)){_VALUE}", rf"\1{HIDDEN}"),
        (rf"({_NAME}[\w.-]{{0,64}}\\?[\"']?\]?\s*(?:[=:>]+|%3[AD])\s*){_VALUE}", rf"\1{HIDDEN}"),
        (rf"((?:PASSWORD|PASSWD|PASSPHRASE)\s+(?:IS\s+)?){_VALUE}", rf"\1{HIDDEN}"),
        (r"((?:KEY|TOKEN|SECRET)\s+)(?=\S*\d)(?=\S*[A-Z])\S{6,}", rf"\1{HIDDEN}"),
        (r"\bEYJ[\w-]{5,}\.[\w.-]+", HIDDEN),
        (r"\b(?:SK|PK|RK|XOX[A-Z]|GLPAT|PYPI|DOP_V1|SHPAT|GITHUB_PAT)[-_](?=[\w-]*\d)[\w-]{8,}", HIDDEN),
        (r"\b(?-i:nvapi-|hvs\.|dckr_pat_|SG\.|whsec_|r8_|gsk_|dapi|ATATT|lin_api_)[\w.-]{16,}", HIDDEN),
        (r"(?<=hooks\.slack\.com/)\S+", HIDDEN),
        (r"\b(?-i:(?:gh[a-z]|hf|npm)_[A-Za-z0-9]{16,}|A[KS]IA[A-Z0-9]{12,}|AIza[\w-]{30,}|ya29\.[\w-]{16,})", HIDDEN),
    )
]
"""Keys, headers, addresses, options, pairs of a name and a value, and tokens that are known by how they begin."""


def is_secret(name: str) -> bool:
    """Whether a variable or an option of this name may hold a credential."""
    return re.search(_NAME, name, re.IGNORECASE) is not None


def without_secrets(text: str) -> str:
    """``text`` with whatever looks like a credential hidden, also where it is encoded for an address."""
    for pattern, kept in _SECRETS:
        text = pattern.sub(kept, text)
    decoded = unquote(text)
    hidden = text if decoded == text else without_secrets(decoded)
    return text if hidden == decoded else hidden


COMMANDS = ("--base", "--also", "--build")  # options of bench whose value is a command


def command_line(words: Sequence[str]) -> list[str]:
    """A command line of bench's as it may be kept: its own options, and a command that follows as :func:`foreign` has
    it, or all of that too with :data:`RECORD`."""
    place = words.index("--") if "--" in words else len(words)
    of_commands = tuple(f"{option}=" for option in COMMANDS)
    apart = (word.split("=", 1) if word.startswith(of_commands) else [word] for word in words[:place])
    own, rest = [*chain.from_iterable(apart)], words[place + 1 :]
    for number, word in enumerate(own[:-1]):
        if word in COMMANDS and RECORD not in own:
            own[number + 1] = " ".join(foreign(own[number + 1].split() or [""]))
    kept = rest and ["--", *(_pairs(rest) if RECORD in own else foreign(rest))]
    return [*_pairs(own), *kept]


def foreign(words: Sequence[str]) -> list[str]:
    """A command that is not bench's: its program, the first word that is a file, and how many other words there are,
    with a checksum by which the same command is known. Nobody knows which of them is a secret."""
    program, *rest = words
    script = next((word for word in rest if os.path.isfile(word)), None)
    shown = [without_secrets(program), *([] if script is None else [script])]
    others = len(words) - len(shown)
    if not others:
        return shown
    checksum = hashlib.sha256("\0".join(words).encode(errors="surrogateescape")).hexdigest()
    return [*shown, f"({others} more word{'s' * (others > 1)}, SHA-256 {checksum[:16]})"]


def _pairs(words: Sequence[str]) -> list[str]:
    """``NAME=value`` and ``--name value`` of a secret's name without the value."""
    kept: list[str] = []
    hide_next = False
    for word in words:
        name, equals, _ = word.partition("=")
        if hide_next and not word.startswith("--"):
            kept.append(HIDDEN)
        elif equals and re.fullmatch(r"[\w.-]+", name) and is_secret(name):
            kept.append(f"{name}={HIDDEN}")
        else:
            kept.append(without_secrets(word))
        hide_next = word == "-p" or (word.startswith("-") and not equals and is_secret(word))
    return kept
