"""What people read is said as people say it, and a README fits a screen or two."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("bench", "nightly", "docs", "scenarios", "benchmarks")
READ = [
    path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".j2", ".md", ".sh")
]

HARD = (
    "that the numerics are held against",
    "where the time goes is recorded",
    "take its figures with care",
    "for all that these launches can tell",
    "is known to need less",
    "ended well and can be believed",
    "of those that train on",
    "other work and heat away",
    "stand in line with --wait",
    "says nothing about chance",
    "chance does not do as much",
    "that stands in the report",
    "training in data parallel and in mixed precision",
    "can be set against no other",
    "speak for care",
    "that may be chance",
    "nothing to object to",
    "who holds more memory",
    "how far it may be from",
    "which there is not",
    "is no file of this run",
    "mend the file",
    "which no fork would have",
    "cannot be shared evenly",
    "neither of which is asked for",
    "there is no such verb",
    "is no identifier",
    "not told",
    "are tied at",
    "tied with",
    "tied for",
)
"""Phrases that nobody says aloud."""


def test_nothing_is_said_that_nobody_says() -> None:
    said = {path: " ".join(path.read_text(encoding="utf-8").lower().split()) for path in [*READ, *ROOT.glob("*.md")]}
    said.pop(ROOT / "CHANGELOG.md")
    said = {path: text.replace("not told apart", "") for path, text in said.items()}  # which people do say
    assert [(str(path), phrase) for path in said for phrase in HARD if phrase in said[path]] == []
    assert len(said) > 150
