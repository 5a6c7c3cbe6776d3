"""What never stands in a file."""

from pathlib import Path

import pytest
from conftest import Bench

from bench import machine
from bench.machine import redact
from bench.verbs.run import run_parser


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


def test_only_program_and_script_of_a_command_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("")
    own = ["attach", "--label", "x", "--"]
    for secret in ("-phunter2", 'import os; os.environ["A"] = "hunter2"', "\uff48unter2", "hunter2"):
        kept = redact.command_line([*own, "python", "train.py", "--lr", secret])
        assert kept[:-1] == [*own, "python", "train.py"] and kept[-1].startswith("(2 more words, SHA-256 ")
        assert redact.command_line([*own, "sh", secret])[4] == "sh"
        assert kept != redact.command_line([*own, "python", "train.py", "--lr", f"{secret}3"])
        assert secret not in str(kept)
        bases = (["--base", f"sh {secret}"], [f"--base=sh {secret}"])
        apart, joined = (redact.command_line(["attach", *base, "--", "sh"]) for base in bases)
        assert joined == apart and secret not in str(apart)
    asked = ["attach", redact.RECORD, "--", "python", "-m", "train", "--token", "hunter2"]
    assert redact.command_line(asked) == [*asked[:-1], "***"]
    assert redact.command_line([*own, "./train.py"]) == [*own, "./train.py"]


IN_TEXT = r"""
os.environ["HF_TOKEN"]="hunter2"
https://hooks.slack.com/services/T0/B0/hunter2
https://h/?X-Amz-Signature=hunter2
https://h/?sv=1&sig=hunter2
https://me:hun/ter2@host
me:hunter2@host
https://h/?access%5Ftoken=hunter2
https%3A%2F%2Fme%3Ahunter2%40host
https://h/?%2561ccess_token=hunter2
password%3Dx%26hunter2
Bearer hunter2
--header "Authorization: Basic hunter2=="
Proxy-Authorization: Digest username=me, response=hunter2
Cookie: a=1; b=hunter2
Basic hunter2QQ==
{"a": {"pass" : "x\"hunter2"}}
{\"pwd\": \"hunter2\"}
{'secret': ['hunter2', 1]}
{"auths": {"host": {"auth": "hunter2"}}}
{apiKey:hunter2}
["--token", "hunter2"]
<password>hunter2</password>
password => hunter2
pw=a,hunter2
PASSWORD='x hunter2'
password is hunter2
with token hunter2
pass: hunter2
dbPwd=hunter2
AWS_SESSION=hunter2
GH_PAT=hunter2
sshpass -p 'x hunter2' ssh
mysql -p=hunter2
curl -u me:hunter2 host
-----BEGIN RSA PRIVATE KEY-----hunter2-----END RSA PRIVATE KEY-----
-----BEGIN PRIVATE KEY-----hunter2
""".strip().splitlines()

HARMLESS = r"""
new NCCL 2.28, driver 580
backward pass: 3 % faster
single_passes: on
2048 tokens: fast
author: me
fix of KeyError: 'x'
a token ring
expandable_segments:True,max_split_size_mb:128
granularity=fine,compact,1,0
{0:1},{2:1}
/opt/Conda3/lib:/usr/lib
4265c65a0ee79f7fdb054de8362e0000aaaabbbb
50 % of steps, 100%25
python -p 4
sk-learn baseline
a basic test of resnet101
""".strip().splitlines()

BY_THEIR_BEGINNING = [start + "A1B2" * 9 for start in ("ghp_", "hf_", "npm_", "glpat-", "AIza", "A" + "KIA", "xoxb-1-")]
BY_THEIR_BEGINNING += [start + "A1B2" * 9 for start in ("nvapi-", "hvs.", "dckr_pat_", "SG.", "whsec_", "r8_", "gsk_")]
BY_THEIR_BEGINNING += [start + "a1b2" * 8 for start in ("dapi", "ATATT", "lin_api_")]
BY_THEIR_BEGINNING += ["eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln", "sk-proj-abc123def456"]


@pytest.mark.parametrize("text", IN_TEXT)
def test_no_credential_is_kept_in_a_text(text: str) -> None:
    kept = redact.without_secrets(text)
    assert "hunter2" not in kept and "ter2" not in kept and redact.HIDDEN in kept
    assert redact.without_secrets(kept) == kept


@pytest.mark.parametrize("token", BY_THEIR_BEGINNING)
def test_a_token_is_known_by_how_it_begins(token: str) -> None:
    assert redact.without_secrets(f"with {token}, again") == "with ***, again"


@pytest.mark.parametrize("text", HARMLESS)
def test_other_text_is_kept(text: str) -> None:
    assert redact.without_secrets(text) == text


def test_long_text_takes_no_time() -> None:
    for part in ("://", "token", "pass", "-----BEGIN a", "a:", "eyJ", "-", "%25", "--key ", '{"key": "', "a.b-"):
        redact.without_secrets(part * (100_000 // len(part)))


def test_a_setting_with_a_credential_is_refused(bench: Bench, tmp_path: Path) -> None:
    code, _, err = bench("run", "--device", "cpu", "--setting", "model=https://me:hunter2@host")
    assert code == 2 and "--setting: model looks like a credential" in err and "hunter2" not in err
    labelled = run_parser().parse_args(["--label", "see https://me:hunter2@host, token=hunter2"])
    assert labelled.label == "see https://***@host, token=***"


def test_credentials_in_the_environment_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("AUTH_TOKEN", "API_KEY", "PASSWORD", "COOKIE", "PAT", "PASS", "PWD", "CREDS", "SESSION", "userPass")
    for name in ("HOME_OF_NOTHING", *(f"{start}_{name}" for start in ("NCCL", "TORCH", "CUDA") for name in names)):
        monkeypatch.setenv(name, "hunter2")
    monkeypatch.setenv("NCCL_PROXY", "http://me:hunter2@host")
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    monkeypatch.setenv("NCCL_IB_PKEY", "1")
    monkeypatch.setenv("TORCH_CONFIG", '{"token": "hunter2"}')
    recorded = machine.recorded_environment()
    kept = {"NCCL_DEBUG": "WARN", "NCCL_IB_PKEY": "1", "NCCL_PROXY": "http://***@host"}
    assert kept.items() <= recorded.items() and "hunter2" not in str(recorded)
