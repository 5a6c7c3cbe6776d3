"""The size of DDP's buckets, 25 MiB by default: small ones start their exchange sooner, large ones fill the link."""

from bench.seams import DDP, Recipe, Switch

SWITCH = Switch(
    summary="the size of DDP's buckets in MiB",
    label="buckets of {value} MiB",
    value=100,
    wrapper=DDP,
    recovers={"cpu": {"communication": 0.2}, "cuda": {"communication": 0.2}},
)


def wrapper(parts):
    return {"bucket_cap_mb": parts.switches["bucket_mb"]}


def effect(session, ran):
    mib = getattr(session.module, "bucket_bytes_cap", 0) / 2**20
    return None if mib == session.parts.switches["bucket_mb"] else f"the wrapper has buckets of {mib:g} MiB"


def recipe(switches):
    return Recipe(keywords={"bucket_cap_mb": str(switches["bucket_mb"])})
