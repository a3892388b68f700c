"""Import circles of `dynaweb`, lazy and typing imports counted: prints each one, exits 1 if there is any.

    python scripts/check_circles.py [FOLDER] [--edges FROM TO]

A circle of modules is a set of files that import each other. A circle of rooms is the same of the files and folders
that lie in one folder, each folder taken as a whole. `--edges` lists the imports that lead from one room to another.
Nothing is imported: the sources are read.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

Graph = Mapping[str, set[str]]


def modules_of(folder: Path) -> dict[str, Path]:
    """The files of a package by their module's name; an `__init__` has the name of its folder."""
    paths = {".".join(path.relative_to(folder.parent).with_suffix("").parts): path for path in folder.rglob("*.py")}
    return {name.removesuffix(".__init__"): path for name, path in paths.items()}


def imports_of(path: Path, module: str, known: Iterable[str]) -> Iterator[tuple[str, int]]:
    """The modules of the package that a file imports anywhere, each with its line."""
    base = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = base.split(".")[: len(base.split(".")) - node.level + 1] if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            names = [alias.name for alias in node.names if alias.name != "__version__"]
            targets = [full if (full := f"{origin}.{name}") in known else origin for name in names]
        else:
            continue
        yield from ((target, node.lineno) for target in targets if target in known and target != module)


def circles(graph: Graph) -> list[list[str]]:
    """The sets of two or more nodes that reach each other (Tarjan's strongly connected components)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    path: list[str] = []
    result: list[list[str]] = []

    def visit(node: str) -> None:
        order[node] = low[node] = len(order)
        path.append(node)
        for other in sorted(graph.get(node, ())):
            if other not in order:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in path:
                low[node] = min(low[node], order[other])
        if low[node] == order[node]:
            members = path[path.index(node) :]
            del path[path.index(node) :]
            if len(members) > 1:
                result.append(sorted(members))

    sys.setrecursionlimit(10_000)
    for node in sorted(graph):
        if node not in order:
            visit(node)
    return result


def rooms(graph: Graph, folder: str) -> dict[str, set[str]]:
    """The imports between what lies in a folder: files, and folders as a whole."""
    depth = folder.count(".") + 2
    result: dict[str, set[str]] = {}
    for name, targets in graph.items():
        room = ".".join(name.split(".")[:depth])
        if not name.startswith(f"{folder}."):
            continue
        inside = {".".join(one.split(".")[:depth]) for one in targets if one.startswith(f"{folder}.")}
        result.setdefault(room, set()).update(inside - {room})
    return result


def main() -> int:
    """Print every circle, or the imports of `--edges`; 1 where there is a circle."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path("dynaweb"))
    parser.add_argument("--edges", nargs=2, metavar=("FROM", "TO"))
    options = parser.parse_args()
    modules = modules_of(options.folder)
    lines = {name: list(imports_of(path, name, modules)) for name, path in modules.items()}
    if options.edges:
        first, second = (tuple((one, f"{one}.")) for one in options.edges)
        for name, targets in sorted(lines.items()):
            if name == first[0] or name.startswith(first[1]):
                for target, line in targets:
                    if target == second[0] or target.startswith(second[1]):
                        print(f"{modules[name]}:{line}: {target}")
        return 0
    graph = {name: {target for target, _ in targets} for name, targets in lines.items()}
    # The front imports all that it offers, when it is asked: it stands above everything.
    root = options.folder.name
    upwards = sorted(name for name, targets in graph.items() if root in targets)
    bad = [f"{name} imports the front {root} itself" for name in upwards]
    bad += [f"modules: {' '.join(circle)}" for circle in circles({name: graph[name] for name in graph if name != root})]
    for folder in sorted({name for name, path in modules.items() if path.name == "__init__.py"}):
        bad += [f"rooms of {folder}: {' '.join(circle)}" for circle in circles(rooms(graph, folder))]
    for line in bad:
        print(line)
    print(f"{len(modules)} modules, {len(bad) or 'no'} circle{'' if len(bad) == 1 else 's'}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
