"""The module graph, read from the imports in the sources under modules/.

  modules.py                    prints it as DOT: a cluster a module, a box a unit with its lines (interface + body), arrows to what it imports
  modules.py --svg FILE         draws it with Graphviz
  modules.py --check            compares the imports with the layer table of modules/meson.build: each unit imports only what its layer's row lists
                                or what lies below that, and each layer that a row lists is imported by one of its units
  modules.py --check-svg FILE   compares the arrows between modules with those of a picture that --svg drew (line counts may differ)

--table FILE reads the layer table from another file. The checks print what differs and exit with 1.
"""
import argparse
import ast
import html
import pathlib
import re
import subprocess
import sys

MODULES = pathlib.Path(__file__).resolve().parent.parent / "modules"
IMPORT = re.compile(r"^\s*(?:export\s+)?import\s+([\w.:]+)\s*;", re.MULTILINE)
DECLARATION = re.compile(r"^\s*(export\s+)?module\s+([\w.:]+)\s*;", re.MULTILINE)


class Source:
    """One file: what it declares ("" for a plain program), whether it is an interface unit, full names of what it imports, and its lines."""

    def __init__(self, path):
        text = path.read_text()
        self.path = path
        self.lines = text.count("\n")
        code = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)
        declared = DECLARATION.search(code)
        self.unit = declared.group(2) if declared else ""
        self.is_interface = bool(declared and (declared.group(1) or path.suffix == ".cppm"))  # or a partition that only its module sees
        own = self.unit.split(":")[0]
        self.imports = [own + name if name.startswith(":") else name for name in IMPORT.findall(code)]


def read_table(path):
    """The rows of `layers`: {layer: (layers that it may import, {unit: file}, its other sources)}; a Meson variable stands as its name."""
    text = path.read_text()
    found = re.search(r"^layers = (\[.*?^\])", text, re.MULTILINE | re.DOTALL)
    if not found:
        sys.exit(f"{path}: no table `layers = [ … ]`")
    tokens = re.findall(r"'[^']*'|#[^\n]*|[A-Za-z_]\w*|[^\sA-Za-z_'#]", found.group(1))
    quoted = [f"'{token}'" if token[0].isalpha() or token[0] == "_" else token for token in tokens if token[0] != "#"]
    try:
        rows = ast.literal_eval(" ".join(quoted))
    except (SyntaxError, ValueError) as error:
        sys.exit(f"{path}: a row of `layers` holds more than strings and variables: {error}")
    return {row[0]: (row[1], row[2], row[3] if isinstance(row[3], list) else [row[3]]) for row in rows}


def read_sources(layers):
    """{layer: its sources}: the files of the folder of that name."""
    return {layer: [Source(path) for path in sorted((MODULES / layer).glob("*.cpp*"))] for layer in layers if (MODULES / layer).is_dir()}


def layer_of(module):
    """tenon.ir:graph → ir, tenon → tenon, std → std."""
    return module.split(":")[0].removeprefix("tenon.")


def arrows_between(sources):
    """The pairs (layer, layer that a unit of it imports)."""
    return {(layer, layer_of(name)) for layer, files in sources.items() for file in files for name in file.imports if layer_of(name) != layer}


def below(table, layer):
    """All layers that a unit of this layer may import."""
    return {name for direct in table[layer][0] if direct in table for name in {direct} | below(table, direct)} | set(table[layer][0])


def check(table, sources):
    """What differs between the sources and the table, a line each."""
    differences = []
    for folder in sorted(path.name for path in MODULES.iterdir() if path.is_dir() and path.name not in table):
        differences.append(f"modules/{folder}/ has no row")
    for layer, files in sources.items():
        listed, units, others = table[layer]
        allowed = below(table, layer) | {layer}
        for file in files:
            name = f"{layer}/{file.path.name}"
            for module in file.imports:
                if layer_of(module) not in allowed:
                    differences.append(f"{name} imports {module}, which the row '{layer}' does not allow")
            if file.is_interface and units.get(file.unit) != name:
                differences.append(f"{name} declares {file.unit}, for which the row '{layer}' has {units.get(file.unit)!r}")
            variables = [other for other in others if not other.endswith(".cpp")]
            if file.unit and not file.is_interface and name not in others and not variables:
                differences.append(f"{name} is in no row")
        imported = {layer_of(module) for file in files for module in file.imports}
        for direct in listed:
            if direct not in imported:
                differences.append(f"the row '{layer}' lists '{direct}', which no unit of {layer} imports")
    return differences


def dot(sources):
    """The graph as DOT; std, which every unit imports, is left out."""
    out = ["digraph modules {", "  compound=true; rankdir=TB; ranksep=0.5; nodesep=0.2;",
           '  node [shape=box, style="rounded,filled", fillcolor=white, fontname=Helvetica, fontsize=10, height=0.3];',
           "  edge [color=gray50, arrowsize=0.6];"]
    for layer, files in sources.items():
        interfaces = [file for file in files if file.is_interface]
        if not interfaces:
            continue
        total = sum(file.lines for file in files)
        out.append(f'  subgraph "cluster_{layer}" {{')
        out.append(f'    label="{layer}: {total} lines"; style="rounded,filled"; fillcolor="#eef3f8"; color="#8aa4bf"; fontname="Helvetica-Bold"; fontsize=12;')
        for file in interfaces:
            bodies = sum(other.lines for other in files if other.path.suffix == ".cpp" and other.path.stem == file.path.stem)
            size = f"{file.lines} + {bodies}" if bodies else f"{file.lines}"
            out.append(f'    "{file.unit}" [label="{file.path.stem}\\n{size}"];')
        named = {file.path.stem for file in interfaces}
        rest = [file for file in files if file.path.suffix == ".cpp" and file.path.stem not in named]
        if rest:
            label = "\\n".join(f"{file.path.name} {file.lines}" for file in rest)
            out.append(f'    "{layer} bodies" [label="{label}", shape=note, style=filled];')
        for file in interfaces:
            for module in dict.fromkeys(file.imports):
                if layer_of(module) == layer:
                    out.append(f'    "{file.unit}" -> "{module}";')
        out.append("  }")
    primary = {layer: next((file.unit for file in files if file.is_interface and ":" not in file.unit), None) for layer, files in sources.items()}
    for upper, lower in sorted(arrows_between(sources)):
        if primary.get(upper) and primary.get(lower):
            out.append(f'  "{primary[upper]}" -> "{primary[lower]}" [ltail="cluster_{upper}", lhead="cluster_{lower}", penwidth=1.5, color="#33526e"];')
    out.append("}")
    return "\n".join(out) + "\n"


def check_svg(picture, sources):
    """What differs between the picture's arrows between modules and those of the sources, a line each."""
    titles = [html.unescape(title) for title in re.findall(r"<title>(.*?)</title>", picture.read_text())]
    pairs = {tuple(layer_of(end) for end in title.split("->")) for title in titles if "->" in title}
    drawn = {pair for pair in pairs if pair[0] != pair[1]}
    real = {pair for pair in arrows_between(sources) if pair[1] != "std"}
    return [f"{picture} lacks {a} -> {b}" for a, b in sorted(real - drawn)] + [f"{picture} has {a} -> {b}, which no source imports" for a, b in sorted(drawn - real)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--svg", type=pathlib.Path, metavar="FILE")
    what.add_argument("--check", action="store_true")
    what.add_argument("--check-svg", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--table", type=pathlib.Path, metavar="FILE", default=MODULES / "meson.build")
    arguments = parser.parse_args()
    table = read_table(arguments.table)
    sources = read_sources(table)
    if arguments.svg:
        try:
            subprocess.run(["dot", "-Tsvg", "-o", arguments.svg], input=dot(sources), text=True, check=True)
        except FileNotFoundError:
            sys.exit("modules.py --svg needs Graphviz (the package graphviz)")
    elif arguments.check or arguments.check_svg:
        differences = check(table, sources) if arguments.check else check_svg(arguments.check_svg, sources)
        print("\n".join(differences), end="\n" if differences else "")
        if differences and arguments.check_svg:
            print(f"draw it again: python3 scripts/modules.py --svg {arguments.check_svg}")
        sys.exit(bool(differences))
    else:
        print(dot(sources), end="")


main()
