"""A GPT-2 decoder that predicts the next token: 124 million parameters on a GPU, a small one on the CPU.

    python -m bench run --workload gpt --data data/openwebtext --setting vocabulary=50304

``--data DIR`` has a ``train.bin`` as nanoGPT writes it: nothing but tokens of 16 bits (``--setting token_bytes=4``: of
32). An example is ``context`` of them; without ``--data`` they are drawn at random. The model computes its loss itself.
"""

import os

from bench.seams import RequestError, Workload

WORKLOAD = Workload(
    summary="GPT-2 on tokens, 124 M parameters on a GPU",
    unit="tokens",
    unit_short="tok",
    units_per_example="context",
    title="GPT {layers}x{width}, context {context}",
    reads="a train.bin of tokens, as nanoGPT writes it",
    global_batch={"cpu": 8, "cuda": 32},
    example_mib=780.0,  # as torch.autograd.graph.saved_tensors_hooks counts it (torch 2.15)
    settings={
        "layers": {"cpu": 2, "cuda": 12},
        "heads": {"cpu": 4, "cuda": 12},
        "width": {"cpu": 128, "cuda": 768},
        "context": {"cpu": 64, "cuda": 1024},
        "vocabulary": {"cpu": 512, "cuda": 50304},
        "dropout": 0.0,
        "token_bytes": 2,
        "learning_rate": 3e-4,
        "weight_decay": 0.1,
    },
)


def model(work):
    import torch
    from torch import nn
    from torch.nn.functional import cross_entropy, scaled_dot_product_attention

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.after = nn.LayerNorm(work.width), nn.LayerNorm(work.width)
            self.qkv, self.out = nn.Linear(work.width, 3 * work.width), nn.Linear(work.width, work.width)
            self.mlp = nn.Sequential(
                nn.Linear(work.width, 4 * work.width), nn.GELU(), nn.Linear(4 * work.width, work.width)
            )
            self.drop = nn.Dropout(work.dropout)

        def forward(self, x):
            batch, length, width = x.shape
            heads = self.qkv(self.norm(x)).view(batch, length, 3, work.heads, -1).permute(2, 0, 3, 1, 4)
            seen = scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).reshape(batch, length, width)
            x = x + self.drop(self.out(seen))
            return x + self.drop(self.mlp(self.after(x)))

    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(work.vocabulary, work.width)
            self.places = nn.Embedding(work.context, work.width)
            self.blocks, self.norm = nn.Sequential(*(Block() for _ in range(work.layers))), nn.LayerNorm(work.width)
            nn.init.normal_(self.tokens.weight, std=0.02)  # which is the output's, too
            nn.init.normal_(self.places.weight, std=0.02)

        def forward(self, tokens, following):
            x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
            logits = self.norm(self.blocks(x)) @ self.tokens.weight.T
            return cross_entropy(logits.flatten(0, 1), following.flatten())

    return Decoder()


def check(work):
    for name in ("layers", "heads", "width", "context", "vocabulary"):
        if getattr(work, name) < 1:
            raise RequestError("--setting", f"{name}={getattr(work, name)} is not at least 1", "give a larger number")
    if work.width % work.heads:
        raise RequestError("--setting", f"width={work.width} is not divisible by {work.heads} heads", "change one")
    if work.token_bytes not in (2, 4):
        raise RequestError("--setting", f"token_bytes={work.token_bytes}: tokens have 2 or 4 bytes", "give one of them")


def size(work):
    file = os.path.join(work.data, "train.bin")
    count = os.path.getsize(file)
    if count % work.token_bytes:
        raise RequestError("--data", f"{file} ends within a token of {work.token_bytes} bytes", "write it again")
    return max(0, count // work.token_bytes - 1) // work.context


def example(work, index):
    import torch

    type_in_file = {2: torch.uint16, 4: torch.uint32}[work.token_bytes]
    if work.data is None:
        random = torch.Generator().manual_seed(work.seed * 1_000_003 + index)
        tokens = torch.randint(work.vocabulary, (work.context + 1,), generator=random)
        return tokens[:-1], tokens[1:]
    file = os.path.join(work.data, "train.bin")
    with open(file, "rb") as content:
        content.seek(index * work.context * work.token_bytes)
        read = bytearray(content.read((work.context + 1) * work.token_bytes))
    tokens = torch.frombuffer(read, dtype=type_in_file).long()
    if int(tokens.max()) >= work.vocabulary:
        what = f"{file} has the token {int(tokens.max())}, and the vocabulary is {work.vocabulary}"
        raise RequestError("--data", what, "raise --setting vocabulary=N, or see --setting token_bytes=N")
    return tokens[:-1], tokens[1:]


def loss(model, batch):
    return model(*batch).mean()  # one loss a GPU where one process drives several


def optimizer(work, parameters):
    from torch.optim import AdamW

    return AdamW(parameters, lr=work.learning_rate, betas=(0.9, 0.95), weight_decay=work.weight_decay, fused=True)
