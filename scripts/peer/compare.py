#!/usr/bin/env python3
"""Rounds of Tenon and its peers by turns: compare.py JSON BENCH PYTHON [CASE...].

Of a case: our median over the rounds, the fastest variant of each peer, `ratio` = the fastest peer's time over ours, the plain loops, rates, and
the share of this run's copy bandwidth. Rows are added to those that JSON already holds.
"""
import json, os, subprocess, sys, time
from statistics import median

ROUNDS = 3
HERE = os.path.dirname(os.path.abspath(__file__))


class Program:
    def __init__(self, name, command):
        self.name = name
        self.pipe = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.hello = self.answer()

    def answer(self):
        for line in self.pipe.stdout:
            if line.startswith("{"):
                return json.loads(line)
        sys.exit(f"compare: {self.name} ended with {self.pipe.wait()}")

    def case(self, name):
        time.sleep(0.3)  # threads of the program that ran before still look for work
        self.pipe.stdin.write(f"case {name}\n")
        self.pipe.stdin.flush()
        return self.answer()

    def close(self):
        self.pipe.communicate("quit\n")


def main(target, bench, python, wanted):
    ours = Program("bench", [bench, "--serve"])
    peers = [Program(name, [python, f"{HERE}/{name}_peer.py"]) for name in ("torch", "jax")]
    rows, copy_rate = json.load(open(target)) if os.path.exists(target) else [], None
    for name in ours.hello["cases"]:
        if name != "copy" and wanted and not any(word in name for word in wanted):
            continue
        mine, plain, theirs, last = [], [], {}, {}
        for _ in range(ROUNDS):
            last = ours.case(name)
            if last["ms"]: mine.append(last["ms"])
            if last["plain_ms"]: plain.append(last["plain_ms"])
            for peer in peers:
                if name not in peer.hello["cases"]:
                    continue
                reply = peer.case(name)
                if "error" in reply:
                    print(f"{peer.name}.{name}: {reply['error']}", file=sys.stderr)
                for variant, times in reply.get("variants", {}).items():
                    theirs.setdefault(f"{peer.name} {variant}", []).append(times["ms"])
        best = {variant: median(times) for variant, times in theirs.items()}
        row = {"case": f"peer.{name}", "peers": best}
        if plain: row["plain_ms"] = median(plain)
        if name == "copy":
            copy_rate = 2 * 4 * (1 << 22) / min([median(plain), *best.values()]) / 1e6
            row["GB/s"] = copy_rate
        else:
            row["ms"], row["least_ms"] = median(mine), min(mine)
            if best and not ours.hello["small"]: row["ratio"] = min(best.values()) / row["ms"]
            if last["flops"]: row["GFLOP/s"] = last["flops"] / row["ms"] / 1e6
            if last["bytes"]:
                row["GB/s"] = last["bytes"] / row["ms"] / 1e6
                row["of_copy"] = row["GB/s"] / copy_rate
        rows.append(row)
        shown = "  ".join(f"{key} {value:.3f}" for key, value in row.items() if isinstance(value, float))
        print(f"{row['case']:34} {shown}  " + "  ".join(f"{variant} {ms:.3f}" for variant, ms in best.items()), flush=True)
    for program in (ours, *peers):
        program.close()
    with open(target, "w") as file:
        json.dump(rows, file, indent=1)


if len(sys.argv) < 4:
    sys.exit(__doc__)
main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])
