"""The ladder: which scenarios show what each step on the way from plain fp32 to the fastest recipe gains."""

RUNGS = {
    "cpu": (
        "ddp+foreach",
        "ddp",
        "ddp+channels_last",
        "ddp+bucket_view+channels_last",
        "ddp_o1+bucket_view+channels_last",
        "ddp_o2+bucket_view+channels_last",
        "ddp_o2+bucket_view+channels_last+compile",
    ),
    "cuda": (
        "ddp+foreach+tf32=off",
        "ddp+tf32=off",
        "ddp+tf32",
        "ddp+channels_last+tf32",
        "ddp+bucket_view+channels_last+tf32",
        "ddp_o1+bucket_view+channels_last+tf32",
        "ddp_o2+bucket_view+channels_last+tf32",
        "ddp_o2+bf16+bucket_view+channels_last+tf32",
        "ddp_o2+bf16+bucket_view+channels_last+compile+tf32",
    ),
}
"""By kind of device, each one step above the one before. The first one has the optimizer that torch takes on a GPU."""

ALONE = {
    "cpu": (
        "ddp+channels_last+foreach",
        "ddp+bucket_view+foreach",
        "ddp_o1+foreach",
        "ddp_o2+foreach",
        "ddp+compile+foreach",
    ),
    "cuda": (
        "ddp+foreach+tf32",
        "ddp+channels_last+foreach+tf32=off",
        "ddp+bucket_view+foreach+tf32=off",
        "ddp_o1+foreach+tf32=off",
        "ddp_o2+foreach+tf32=off",
        "ddp+compile+foreach+tf32=off",
    ),
}
"""Each of these steps on the first rung: what it gains there, so that interaction can be told."""
