"""Adds the module interface units, which Meson builds as custom targets, to BUILD/compile_commands.json: compdb.py BUILD."""
import json
import pathlib
import shlex
import subprocess
import sys

build = pathlib.Path(sys.argv[1]).resolve()
database = build / "compile_commands.json"
entries = [entry for entry in json.loads(database.read_text()) if not entry["file"].endswith(".cppm")]
commands = subprocess.run(["ninja", "-C", build, "-t", "commands"], capture_output=True, text=True, check=True).stdout
for line in commands.splitlines():
    words = shlex.split(line)
    source = next((word for word in words if word.endswith(".cppm")), None)
    if source and "c++-module" in words:
        entries.append({"directory": str(build), "command": line, "file": source, "output": words[words.index("-o") + 1]})
database.write_text(json.dumps(entries, indent=2))
print(f"{sum(entry['file'].endswith('.cppm') for entry in entries)} interface units in {database.name}")
