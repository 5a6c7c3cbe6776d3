"""What never stands in a file."""

import pytest

from bench import machine
from bench.machine import redact


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (["run", "--label", "night"], ["run", "--label", "night"]),
        (["--api-key", "hunter2", "--json"], ["--api-key", "***", "--json"]),
        (["--api-key=hunter2"], ["--api-key=***"]),
        (["HF_TOKEN=hunter2"], ["HF_TOKEN=***"]),
        (["--label", "see https://me:hunter2@host/x"], ["--label", "see https://***@host/x"]),
        (["--secret", "--json"], ["--secret", "--json"]),
    ],
)
def test_a_command_line_is_kept_without_its_secrets(words: list[str], kept: list[str]) -> None:
    assert redact.command_line(words) == kept


def test_of_the_environment_nothing_that_looks_like_a_credential_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NCCL_AUTH_TOKEN", "TORCH_API_KEY", "CUDA_PASSWORD", "TORCH_COOKIE", "HOME_OF_NOTHING"):
        monkeypatch.setenv(name, "hunter2")
    monkeypatch.setenv("NCCL_PROXY", "http://me:hunter2@host")
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    recorded = machine.recorded_environment()
    assert recorded["NCCL_DEBUG"] == "WARN" and recorded["NCCL_PROXY"] == "http://***@host"
    assert "hunter2" not in str(recorded)
