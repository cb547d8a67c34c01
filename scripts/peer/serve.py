"""What both peers share: a line "case NAME" on stdin is answered by one line of JSON on stdout, "quit" or the end of stdin ends the program.

A case is prepared once, at its first request, and timed anew at each request, so that rounds of the peers and of Tenon can take turns.
"""
import json, statistics, sys, time

N = 1 << 22          # elements of a memory-bound case
COLUMNS = 4096       # of softmax
FEATURES = 768       # of layer norm
CLASSES = 50304      # of cross-entropy, with
ROWS = 256           # rows
ATTENTION = (1, 4, 512, 64)                        # batch, heads, tokens, features
GPT = dict(L=2, d=256, h=4, V=8192, T=128)         # layers, features, heads, vocabulary, tokens


def measured(call, budget=0.4, least=5, most=40):
    """Milliseconds (median, least) of single calls after one that warms up, within a budget of seconds."""
    call()
    times, start = [], time.perf_counter()
    while len(times) < least or (len(times) < most and time.perf_counter() - start < budget):
        at = time.perf_counter()
        call()
        times.append((time.perf_counter() - at) * 1e3)
    return statistics.median(times), min(times)


def serve(hello, makers):
    """`makers`: case to a function that gives {variant: call}, each call complete when it returns."""
    print(json.dumps(hello | {"cases": list(makers)}), flush=True)
    ready = {}
    for line in sys.stdin:
        words = line.split()
        if words[:1] == ["quit"]:
            break
        if len(words) != 2 or words[0] != "case" or words[1] not in makers:
            print(json.dumps({"error": f"expected 'case NAME' with a known name, got {line.strip()!r}"}), flush=True)
            continue
        name = words[1]
        row = {"case": name, "variants": {}}
        try:
            if name not in ready:
                ready[name] = {}
                for variant, call in makers[name]().items():
                    at = time.perf_counter()
                    call()
                    ready[name][variant] = (call, time.perf_counter() - at)
            for variant, (call, first) in ready[name].items():
                median, least = measured(call)
                row["variants"][variant] = {"ms": median, "least_ms": least, "first_call_s": first}
        except Exception as error:  # one failed case must not end the others
            row["error"] = repr(error)[:300]
        print(json.dumps(row), flush=True)
