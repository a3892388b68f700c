"""What the tests of the core share: real temporary plugin packages, and the source of toy plugins."""

from __future__ import annotations

import importlib
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

Cli = Callable[..., "subprocess.CompletedProcess[str]"]

TOY_CLASS = """
class Toy:
    def __init__(self, config, context):
        self.config, self.seed = config, context.seed
"""

TOY = """
from pydantic import BaseModel, ConfigDict
from dynaweb.hookspecs import PluginSpec, hookimpl


class Config(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    size: int = 3
    mode: str = "fast"


@hookimpl
def {hook}():
    return [PluginSpec(name="{name}", target="{target}", config=Config, summary="a toy", extra="{extra}")]
"""


def toy_source(
    name: str = "toy", *, hook: str = "dynaweb_world_models", target: str = "toys:Toy", extra: str = ""
) -> str:
    """Source of a plugin module that offers one toy under a hook."""
    return TOY.format(name=name, hook=hook, target=target, extra=extra)


@dataclass(frozen=True)
class PackageMaker:
    """Writes real packages with metadata and entry points into a folder that is on the path."""

    folder: Path

    def __call__(
        self,
        name: str,
        code: str,
        *,
        version: str = "1.2",
        entry_points: Mapping[str, str] | None = None,
        requires: Sequence[str] = (),
        modules: Mapping[str, str] | None = None,
    ) -> str:
        """Install a package whose module (`name` with underscores) holds `code`. Returns the module's name."""
        module = name.replace("-", "_")
        for file, text in {module: code, **(modules or {})}.items():
            (self.folder / f"{file}.py").write_text(text, encoding="utf-8")
        info = self.folder / f"{module}-{version}.dist-info"
        info.mkdir()
        extras = sorted({line.split("extra ==")[1].strip(" \"'") for line in requires if "extra ==" in line})
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        lines += [f"Provides-Extra: {extra}" for extra in extras] + [f"Requires-Dist: {line}" for line in requires]
        (info / "METADATA").write_text("\n".join(lines) + "\n", encoding="utf-8")
        points = entry_points if entry_points is not None else {name: module}
        text = "\n".join(["[dynaweb]", *(f"{key} = {value}" for key, value in points.items())])
        (info / "entry_points.txt").write_text(text + "\n", encoding="utf-8")
        importlib.invalidate_caches()
        return module
