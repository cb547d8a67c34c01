#!/usr/bin/env python3
"""JAX, compiled by XLA, on the CPU, in the sizes of torch_peer.py; the protocol is serve.py's."""
import os

os.environ["JAX_PLATFORMS"] = "cpu"
import jax
import jax.numpy as jnp

from serve import ATTENTION, CLASSES, COLUMNS, FEATURES, GPT, N, ROWS, serve


def normal(seed, *sizes):
    return jax.random.normal(jax.random.PRNGKey(seed), sizes)


def xla(function, *arguments):
    compiled = jax.jit(function)
    return {"xla": lambda: jax.block_until_ready(compiled(*arguments))}


def layer_norm(x, g, b):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * g + b


def norm(gradients):
    rows = N // FEATURES
    x, g, b, dy = normal(0, rows, FEATURES), normal(1, FEATURES), normal(2, FEATURES), normal(3, rows, FEATURES)
    if gradients:
        return xla(lambda x, g, b, dy: jax.vjp(layer_norm, x, g, b)[1](dy), x, g, b, dy)
    return xla(layer_norm, x, g, b)


def mean_loss(logits, targets):
    return (jax.nn.logsumexp(logits, -1) - jnp.take_along_axis(logits, targets[:, None], -1)[:, 0]).mean()


def cross_entropy():
    targets = jax.random.randint(jax.random.PRNGKey(1), (ROWS,), 0, CLASSES)
    return xla(jax.grad(mean_loss), normal(0, ROWS, CLASSES), targets)


def adam():
    def update(p, g, m, v):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        return p * (1 - 1e-4) - 1e-3 * m / (jnp.sqrt(v) + 1e-8), m, v
    compiled = jax.jit(update, donate_argnums=(0, 2, 3))
    state, g = [normal(0, N), normal(1, N), jnp.abs(normal(2, N))], normal(3, N)

    def step():
        state[:] = compiled(state[0], g, state[1], state[2])
        jax.block_until_ready(state)
    return {"xla": step}


def matmul(n):
    return xla(jnp.matmul, normal(0, n, n), normal(1, n, n))


def matmul_gelu(n):
    return xla(lambda a, w, b: jax.nn.gelu(a @ w + b, approximate=True), normal(0, n, n), normal(1, n, n), normal(2, n))


def attention(gradients):
    B, H, T, D = ATTENTION
    q, k, v, do = (normal(seed, B, T, H, D) for seed in range(4))

    def attend(q, k, v):
        return jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="xla")
    if gradients:
        return xla(lambda q, k, v, do: jax.vjp(attend, q, k, v)[1](do), q, k, v, do)
    return xla(attend, q, k, v)


def gpt_parameters(L, d, V, T):
    seeds = iter(range(1, 4 * L + 3))

    def weight(*sizes):
        return 0.02 * normal(next(seeds), *sizes)

    def affine(rows, columns):
        return weight(rows, columns), jnp.zeros(columns)

    def unit():
        return jnp.ones(d), jnp.zeros(d)
    blocks = [dict(norm1=unit(), norm2=unit(), qkv=affine(d, 3 * d), projection=affine(d, d), up=affine(d, 4 * d), down=affine(4 * d, d))
              for _ in range(L)]
    return dict(tokens=weight(V, d), positions=weight(T, d), norm=unit(), blocks=blocks)


def gpt_loss(p, indices, targets):
    B, T = indices.shape
    d, h = GPT["d"], GPT["h"]
    x = p["tokens"][indices] + p["positions"][:T]
    for block in p["blocks"]:
        w, b = block["qkv"]
        q, k, v = jnp.split((layer_norm(x, *block["norm1"]) @ w + b).reshape(B, T, 3 * h, d // h), 3, axis=2)
        mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="xla").reshape(B, T, d)
        w, b = block["projection"]
        x = x + mixed @ w + b
        w, b = block["up"]
        wide = jax.nn.gelu(layer_norm(x, *block["norm2"]) @ w + b, approximate=True)
        w, b = block["down"]
        x = x + wide @ w + b
    logits = layer_norm(x, *p["norm"]) @ p["tokens"].T
    return mean_loss(logits.reshape(B * T, -1), targets.reshape(-1))


def gpt():
    p = gpt_parameters(GPT["L"], GPT["d"], GPT["V"], GPT["T"])
    indices, targets = (jax.random.randint(jax.random.PRNGKey(seed), (1, GPT["T"]), 0, GPT["V"]) for seed in (98, 99))

    def update(p, m, v, t):
        loss, g = jax.value_and_grad(gpt_loss)(p, indices, targets)
        t = t + 1
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
        v = jax.tree.map(lambda v, g: 0.95 * v + 0.05 * g * g, v, g)
        lr, c1, c2 = 6e-4, 1 - 0.9 ** t, 1 - 0.95 ** t
        p = jax.tree.map(lambda p, m, v: p * (1 - lr * 0.1) - lr * (m / c1) / (jnp.sqrt(v / c2) + 1e-8), p, m, v)
        return p, m, v, t, loss
    compiled = jax.jit(update, donate_argnums=(0, 1, 2, 3))
    state = [p, jax.tree.map(jnp.zeros_like, p), jax.tree.map(jnp.zeros_like, p), jnp.float32(0)]

    def step():
        *state[:], loss = compiled(*state)
        jax.block_until_ready((state, loss))
    return {"xla": step}


def overhead(inputs):
    xs, compiled, turns = [normal(seed, 4) for seed in range(inputs)], jax.jit(lambda *a: a[0] + 1), 1000

    def run():
        for _ in range(turns):
            last = compiled(*xs)
        jax.block_until_ready(last)
    return {f"xla x{turns}": run}


serve({"jax": jax.__version__}, {
    "pointwise_gelu_chain": lambda: xla(lambda a, b, c: jax.nn.gelu(a * b + c, approximate=True) * c, *(normal(seed, N) for seed in range(3))),
    "softmax_4096": lambda: xla(lambda x: jax.nn.softmax(x, -1), normal(0, N // COLUMNS, COLUMNS)),
    "layernorm_fwd": lambda: norm(False), "layernorm_fwd_bwd": lambda: norm(True),
    "cross_entropy_50k_fwd_bwd": cross_entropy, "adam_fp32": adam,
    "matmul_512": lambda: matmul(512), "matmul_1024": lambda: matmul(1024),
    "matmul_bias_gelu_512": lambda: matmul_gelu(512), "matmul_bias_gelu_1024": lambda: matmul_gelu(1024),
    "sdpa_causal_fwd": lambda: attention(False), "sdpa_causal_fwd_bwd": lambda: attention(True),
    "gpt2_train_B1_T128": gpt,
    "call_overhead_1_input": lambda: overhead(1), "call_overhead_100_inputs": lambda: overhead(100),
})
