"""How the code is built: rooms, floors, arrows, circles, the longest chain of imports, lines, lengths of functions,
literal keys, tests, benchmarks, documents.

    python -m benchmarks.tables.structure [ROOT] [--follow] [--json FILE]

A room is a folder or a file directly below `pipelines/`; an arrow is a pair of rooms of which one imports the
other, at the top of a file or inside a function. Floors are the lengths of chains of rooms, where the
rooms of a circle are one. An upward arrow is one that has to go so that no circle is left (the fewest that a greedy
search finds). --follow also runs the golden configuration, and counts the files whose functions its report stage, its
ingest stage and the reading of its settings enter, and how often they go from one file to another. It reads ROOT as
text; with --follow it runs its code.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from benchmarks.shared.options import make_parser

AROUND = ("pipelines", "tests", "benchmarks")
PACKAGES = ("harmonize", "federation", "personalize", "privacy", "evaluation", "pipelines", "consilium")
FOLLOWED = ("settings", "ingest", "report")
Graph = Mapping[str, set[str]]


def modules(root: Path) -> dict[str, Path]:
    """Every module of the product by its dotted name."""
    found = {}
    for package in PACKAGES:
        for path in (root / package).rglob("*.py"):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(known: Mapping[str, Path]) -> dict[str, set[str]]:
    """Module -> the product's modules that it imports anywhere in its text."""
    graph: dict[str, set[str]] = {}
    for name, path in known.items():
        said: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                said |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                said |= {each if each in known else node.module for each in inner}
        graph[name] = {each for each in said if each in known and each != name}
    return graph


def components(graph: Graph) -> list[set[str]]:
    """Strongly connected components (Tarjan, SIAM J. Comput. 1972); those of more than one node are circles."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[set[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in index:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == index[node]:
            cut = stack.index(node)
            found.append(set(stack[cut:]))
            del stack[cut:]

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def longest(graph: Graph) -> int:
    """Nodes on the longest chain; a circle counts as one."""
    groups = components(graph)  # a component comes after all that it reaches
    home = {node: number for number, group in enumerate(groups) for node in group}
    lengths: dict[int, int] = {}
    for number, group in enumerate(groups):
        below = {home[other] for node in group for other in graph[node]} - {number}
        lengths[number] = 1 + max((lengths[other] for other in below), default=0)
    return max(lengths.values(), default=0)


def upward(graph: Graph) -> int:
    """How many arrows a greedy search takes away until no circle is left."""
    left = {node: set(others) for node, others in graph.items()}
    removed = 0
    while circles := [group for group in components(left) if len(group) > 1]:
        group = circles[0]
        inside = {node: len(left[node] & group) - sum(node in left[other] for other in group) for node in group}
        lowest = min(group, key=lambda node: (inside[node], node))  # most imported, imports least
        removed += len(left[lowest] & group)
        left[lowest] -= group
    return removed


def room(name: str) -> str:
    """The room of `pipelines` in which a module lies."""
    return ".".join(name.split(".")[:2])


def rooms(graph: Graph) -> dict[str, set[str]]:
    """The rooms of `pipelines`, and the arrows between them."""
    found: dict[str, set[str]] = {}
    for name, others in graph.items():
        if name.startswith("pipelines.") and not name.endswith("__main__"):
            found.setdefault(room(name), set()).update(room(o) for o in others if o.startswith("pipelines."))
    return {name: {other for other in others if other != name and other in found} for name, others in found.items()}


def lengths(paths: Iterable[Path]) -> list[int]:
    """Lines of every function, sorted."""
    return sorted(
        (node.end_lineno or 0) - node.lineno + 1
        for path in paths
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


PROFILE = """
import json, os, sys
from pathlib import Path
root, what = Path(sys.argv[1]), sys.argv[2]; sys.path.insert(0, str(root))
from pipelines.run import main
from pipelines.settings import load
load_config = getattr(load, "load_config", None) or load.load  # its name before 2026-11-26
config = str(root / "tests" / "golden" / "tiny" / "tiny.yaml")
if what != "settings" and main([config]): sys.exit("the golden run failed")
load_config(config)
entered, count, last, known = set(), 0, None, {}
def look(frame, event, argument):
    global count, last
    if event != "call": return
    file = frame.f_code.co_filename
    if file not in known:
        known[file] = file.startswith(str(root)) and "/.venv/" not in file and "/tests/" not in file
    if not known[file]: return
    entered.add(file); count += file != last; last = file
sys.setprofile(look)
load_config(config) if what == "settings" else main([config, "--only", what, "--fresh"])
sys.setprofile(None)
Path("out.json").write_text(json.dumps({"files": len(entered), "switches": count}))
"""


def follow(root: Path, what: str) -> dict[str, int]:
    """Files that a stage of the golden run, or the reading of its settings, enters, and changes from one to another."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPATH": str(root)}
        command = [sys.executable, "-c", PROFILE, str(root), what]
        subprocess.run(command, cwd=folder, env=environment, check=True, stdout=2, timeout=1800)  # noqa: S603
        found = json.loads((Path(folder) / "out.json").read_text())
    return {f"files_entered_by_{what}": found["files"], f"changes_of_file_in_{what}": found["switches"]}


def measured(root: Path) -> dict[str, int]:
    """All figures but the report's."""
    known = modules(root)
    graph = imports(known)
    shell = rooms(graph)
    functions = lengths(known.values())
    return {
        "rooms": len(shell),
        "floors": longest(shell),
        "arrows": sum(map(len, shell.values())),
        "upward_arrows": upward(shell),
        "circles_of_rooms": sum(len(group) > 1 for group in components(shell)),
        "circles_of_files": sum(len(group) > 1 for group in components(graph)),
        "longest_chain_of_files": longest(graph),
        "files": len(known),
        "files_of_70_lines_or_less_with_one_importer": small(known, graph),
        "lines": sum(path.read_text(encoding="utf-8").count("\n") for path in known.values()),
        "functions": len(functions),
        "lines_of_a_function_median": functions[len(functions) // 2],
        "lines_of_a_function_90_percent": functions[int(0.9 * len(functions))],
        "import_lines_in_1000": count_import_lines(known.values()),
        **count_around(root),
    }


def count_import_lines(paths: Iterable[Path]) -> int:
    """Lines of import statements in 1,000 lines."""
    paths = list(paths)
    texts = [path.read_text(encoding="utf-8") for path in paths]
    lines = sum(
        (node.end_lineno or 0) - node.lineno + 1
        for text in texts
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
    )
    return round(1000 * lines / sum(text.count("\n") for text in texts))


def count_around(root: Path) -> dict[str, int]:
    """Lines of `pipelines` that read a mapping by a literal key; lines of tests and benchmarks; words of `docs/`."""
    texts = {name: [path.read_text(encoding="utf-8") for path in (root / name).rglob("*.py")] for name in AROUND}
    keyed = re.compile(r"""\["[a-z_]+"\]""")
    pages = [path.read_text(encoding="utf-8") for path in (root / "docs").rglob("*.md")]
    return {
        "lines_with_a_literal_key_in_pipelines": sum(
            bool(keyed.search(line)) for text in texts["pipelines"] for line in text.split("\n")
        ),
        "lines_of_tests": sum(text.count("\n") for text in texts["tests"]),
        "lines_of_benchmarks": sum(text.count("\n") for text in texts["benchmarks"]),
        "words_of_docs": sum(len(text.split()) for text in pages),
    }


def small(known: Mapping[str, Path], graph: Graph) -> int:
    """Files of `pipelines` of at most 70 lines that one other file imports."""
    importers = dict.fromkeys(known, 0)
    for others in graph.values():
        for other in others:
            importers[other] += 1
    return sum(
        importers[name] == 1 and path.name != "__init__.py" and path.read_text(encoding="utf-8").count("\n") <= 70
        for name, path in known.items()
        if name.startswith("pipelines.")
    )


def main() -> None:
    line = make_parser(__doc__)
    line.add_argument("root", nargs="?", default=Path(__file__).parents[2], type=Path)
    line.add_argument(
        "--follow", "--report", action="store_true", help="also run the golden configuration and follow its stages"
    )
    line.add_argument("--json", type=Path)
    options = line.parse_args()
    sys.setrecursionlimit(10_000)
    found = measured(options.root.resolve())
    for what in FOLLOWED if options.follow else ():
        found |= follow(options.root.resolve(), what)
    for name, value in found.items():
        print(f"{name:<45}{value:>8,}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
