"""Merges what the samples wrote into REPORT/claims.json and prints the table of claims: report.py REPORT.

REPORT/runs.txt has a line for each sample that ran, "NAME STATUS SECONDS"; NAME.json its rows, NAME.txt its output.
"""
import json
import pathlib
import sys

KEYS = ["id", "sample", "title", "article", "measured", "verdict", "seconds"]
VERDICTS = ["reproduced", "reproduced with a difference", "contradicted", "not measurable here"]


def rows_of(path, sample):
    """The rows that a sample wrote, checked; ValueError says what is wrong."""
    try:
        rows = json.loads(path.read_text())
    except FileNotFoundError:
        raise ValueError("wrote no rows: every sample takes --json=FILE") from None
    except ValueError as error:
        raise ValueError(f"its rows are not JSON: {error}") from None
    if not isinstance(rows, list):
        raise ValueError("its rows are not a JSON array")
    for number, row in enumerate(rows):
        if not isinstance(row, dict) or sorted(row) != sorted(KEYS):
            raise ValueError(f"row {number}: the keys must be {', '.join(KEYS)}")
        if row["verdict"] not in VERDICTS:
            raise ValueError(f"row {number}: verdict {row['verdict']!r} is none of {', '.join(VERDICTS)}")
        if row["sample"] != sample:
            raise ValueError(f"row {number}: sample {row['sample']!r} is not {sample!r}")
        if isinstance(row["seconds"], bool) or not isinstance(row["seconds"], (int, float)):
            raise ValueError(f"row {number}: seconds {row['seconds']!r} is not a number")
    return rows


def text_of(measured):
    """The measured figures on one line."""
    if isinstance(measured, dict):
        return ", ".join(f"{key} {text_of(value)}" for key, value in measured.items())
    if isinstance(measured, list):
        return ", ".join(text_of(value) for value in measured)
    return measured if isinstance(measured, str) else json.dumps(measured, ensure_ascii=False)


def main():
    report = pathlib.Path(sys.argv[1])
    runs_file = report / "runs.txt"
    runs = [line.split() for line in runs_file.read_text().splitlines()] if runs_file.exists() else []
    claims, failures = [], []
    for name, status, _ in runs:
        try:
            rows = rows_of(report / f"{name}.json", name) if status == "0" else []
            repeated = {row["id"] for row in rows} & {claim["id"] for claim in claims}
            if repeated:
                raise ValueError(f"claim {sorted(repeated)[0]} has a row already")
            claims += rows
            if status != "0":
                raise ValueError("ran longer than its time" if status in ("124", "137") else f"exit status {status}")
        except ValueError as error:
            failures.append((name, str(error)))
    file = report / "claims.json"
    file.write_text(json.dumps(claims, indent=1, ensure_ascii=False) + "\n")

    if claims:
        width = max(len(claim["id"]) for claim in claims)
        print(f"\n{'claim':{max(width, 5)}}  {'verdict':{len(VERDICTS[1])}}  {'seconds':>7}  title: measured")
        for claim in claims:
            print(f"{claim['id']:{max(width, 5)}}  {claim['verdict']:{len(VERDICTS[1])}}  {claim['seconds']:7.1f}  {claim['title']}: {text_of(claim['measured'])}")
    print("\nsample seconds: " + ", ".join(f"{name} {seconds}" for name, _, seconds in runs))
    for name, reason in failures:
        print(f"\n{name} failed: {reason}; the end of its output:")
        for line in (report / f"{name}.txt").read_text(errors="replace").splitlines()[-20:]:
            print(f"  | {line}")
    print(f"\nreport: {file}\nsamples: {len(runs) - len(failures)}/{len(runs)} ok")
    return 1 if failures else 0


sys.exit(main())
