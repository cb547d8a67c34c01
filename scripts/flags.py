"""Checks that all translation units are compiled with the same language and macro flags: flags.py COMPILE_COMMANDS.

Clang takes a module interface that was compiled with another NDEBUG, sanitizer or standard without a word, and the program is wrong at run time.
Compared are -std, -stdlib, -D, -U, -pthread, -f… and -m… of every entry of the database, interface units (which scripts/compdb.py adds) and
the rest that reads one; optimization, warnings, paths and the names of module files may differ. Prints what differs and exits with 1.
"""
import collections
import json
import pathlib
import shlex
import sys

SAME = ("-std=", "-stdlib=", "-D", "-U", "-pthread", "-f", "-m")
FREE = ("-DTENON_SOURCE_ROOT=",  # where tests and samples find their files: no module reads it
        "-march=",               # an instruction set changes code, not what an interface says
        "-fmodule-file=", "-fmodule-output", "-fcolor-diagnostics", "-fdiagnostics-", "-fuse-ld=")


def language_flags(entry):
    """The flags of an entry that change language or macros; -D NAME is -DNAME."""
    words = entry["arguments"] if "arguments" in entry else shlex.split(entry["command"])
    joined = [words[i] + words[i + 1] if words[i] in ("-D", "-U") and i + 1 < len(words) else words[i] for i in range(len(words))]
    return frozenset(word for word in joined if word.startswith(SAME) and not word.startswith(FREE))


def reads_modules(entry):
    """Whether a unit reads or makes a module interface: others may be compiled as they like."""
    words = entry["arguments"] if "arguments" in entry else shlex.split(entry["command"])
    return any(word.startswith("-fmodule-file=") for word in words) or entry["file"].endswith(".cppm")


def main():
    database = pathlib.Path(sys.argv[1])
    files = collections.defaultdict(list)
    for entry in json.loads(database.read_text()):
        if reads_modules(entry):
            files[language_flags(entry)].append(entry["file"])
    units = sum(file.endswith(".cppm") for group in files.values() for file in group)
    if units == 0:
        print(f"{database} has no interface unit: run scripts/compdb.py first")
        return 1
    usual = max(files, key=lambda flags: len(files[flags]))
    for flags, group in files.items():
        if flags != usual:
            print(f"{', '.join(sorted(group))}: has {' '.join(sorted(flags - usual)) or 'nothing more'}, lacks {' '.join(sorted(usual - flags)) or 'nothing'}")
    return int(len(files) > 1)


sys.exit(main())
