#!/usr/bin/env python3
"""PyTorch, eager and compiled, on the CPU: torch_peer.py [THREADS]; the protocol is serve.py's."""
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

from serve import ATTENTION, CLASSES, COLUMNS, FEATURES, GPT, N, ROWS, serve

threads = int(sys.argv[1]) if len(sys.argv) > 1 else 2
torch.set_num_threads(threads)
torch.manual_seed(0)


def both(call):
    return {"eager": call, "compile": torch.compile(call)}


def leaf(*sizes):
    return torch.randn(*sizes).requires_grad_()


def copy():
    x, y = torch.randn(N), torch.empty(N)
    return {"eager": lambda: y.copy_(x)}


def gelu_chain():
    a, b, c = (torch.randn(N) for _ in range(3))
    return both(lambda: F.gelu(a * b + c, approximate="tanh") * c)


def softmax():
    x = torch.randn(N // COLUMNS, COLUMNS)
    return both(lambda: torch.softmax(x, -1))


def norm(gradients):
    rows = N // FEATURES
    x, g, b, dy = leaf(rows, FEATURES), leaf(FEATURES), leaf(FEATURES), torch.randn(rows, FEATURES)
    if gradients:
        return both(lambda: torch.autograd.grad(F.layer_norm(x, (FEATURES,), g, b), (x, g, b), dy))
    x, g, b = x.detach(), g.detach(), b.detach()
    return both(lambda: F.layer_norm(x, (FEATURES,), g, b))


def cross_entropy():
    x, t = leaf(ROWS, CLASSES), torch.randint(0, CLASSES, (ROWS,))
    return both(lambda: torch.autograd.grad(F.cross_entropy(x, t), x)[0])


def adam():
    p, g, m, v = (torch.rand(N) for _ in range(4))

    def step():
        m.lerp_(g, 0.1)
        v.mul_(0.999).addcmul_(g, g, value=0.001)
        p.mul_(1 - 1e-4).addcdiv_(m, v.sqrt().add_(1e-8), value=-1e-3)
    return both(step)


def matmul(n):
    a, b = torch.randn(n, n), torch.randn(n, n)
    return both(lambda: a @ b)


def matmul_gelu(n):
    a, w, bias = torch.randn(n, n), torch.randn(n, n), torch.randn(n)
    return both(lambda: F.gelu(F.linear(a, w, bias), approximate="tanh"))


def attention(gradients):
    q, k, v = (leaf(*ATTENTION) for _ in range(3))
    do = torch.randn(*ATTENTION)
    if gradients:
        return both(lambda: torch.autograd.grad(F.scaled_dot_product_attention(q, k, v, is_causal=True), (q, k, v), do))
    q, k, v = q.detach(), k.detach(), v.detach()
    return both(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True))


class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.projection = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        B, T, d = x.shape
        q, k, v = (part.view(B, T, self.h, d // self.h).transpose(1, 2) for part in self.qkv(self.norm1(x)).split(d, 2))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).reshape(B, T, d))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, L, d, h, V, T):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(V, d), nn.Embedding(T, d)
        self.blocks, self.norm = nn.ModuleList(Block(d, h) for _ in range(L)), nn.LayerNorm(d)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, 0, 0.02)

    def forward(self, indices, targets):
        x = self.tokens(indices) + self.positions.weight[: indices.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def gpt():
    indices, targets = (torch.randint(0, GPT["V"], (1, GPT["T"])) for _ in range(2))

    def training(compiled):
        torch.manual_seed(0)
        model = Gpt(**GPT)
        loss_of = torch.compile(model) if compiled else model
        optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

        def step():
            loss_of(indices, targets).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return step
    return {"eager": training(False), "compile": training(True)}


def overhead(inputs):
    xs = [torch.randn(4) for _ in range(inputs)]
    add, turns = (lambda *a: a[0] + 1), 1000

    def repeated(call):
        def run():
            for _ in range(turns):
                call(*xs)
        return run
    return {f"{name} x{turns}": repeated(call) for name, call in both(add).items()}


serve({"torch": torch.__version__, "threads": torch.get_num_threads()}, {
    "copy": copy, "pointwise_gelu_chain": gelu_chain, "softmax_4096": softmax,
    "layernorm_fwd": lambda: norm(False), "layernorm_fwd_bwd": lambda: norm(True),
    "cross_entropy_50k_fwd_bwd": cross_entropy, "adam_fp32": adam,
    "matmul_512": lambda: matmul(512), "matmul_1024": lambda: matmul(1024),
    "matmul_bias_gelu_512": lambda: matmul_gelu(512), "matmul_bias_gelu_1024": lambda: matmul_gelu(1024),
    "sdpa_causal_fwd": lambda: attention(False), "sdpa_causal_fwd_bwd": lambda: attention(True),
    "gpt2_train_B1_T128": gpt,
    "call_overhead_1_input": lambda: overhead(1), "call_overhead_100_inputs": lambda: overhead(100),
})
