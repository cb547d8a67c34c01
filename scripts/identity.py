"""Writes a C header with one digest of what generates code: identity.py HEADER WORDS SOURCE...

WORDS are the compiler and its flags. Of a source the digest holds its name without the folder and its contents, so moving the tree changes nothing.
"""
import hashlib
import pathlib
import sys

header, words, *sources = sys.argv[1:]
digest = hashlib.sha256()
for text in [words.encode()] + [part for source in sorted(sources, key=lambda path: pathlib.Path(path).parts[-2:])
                                for part in ("/".join(pathlib.Path(source).parts[-2:]).encode(), pathlib.Path(source).read_bytes())]:
    digest.update(b"%d " % len(text) + text)
pathlib.Path(header).write_text(f'#define TENON_BUILD_IDENTITY "{digest.hexdigest()}"\n')
