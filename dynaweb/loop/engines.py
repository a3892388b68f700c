"""The engines of a stage: one for all roles that choose the same engine on the same weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from dynaweb.engines.asking import close
from dynaweb.protocols import PluginContext

if TYPE_CHECKING:
    from torch import nn

    from dynaweb.engines.transformers_engine import TransformersEngine
    from dynaweb.loop.workspace import LoadedModel, Workspace


class Engines:
    """Makes engines, and ends those that hold processes."""

    def __init__(self, ws: Workspace) -> None:
        self._ws = ws
        self._made: list[tuple[nn.Module, str, Any]] = []

    def of(self, model: LoadedModel, role: str) -> TransformersEngine:
        """The engine of a role on a model; its tokens count in the stage's costs."""
        ws = self._ws
        choice = ws.recipe.engine_of(role)
        kind = f"{choice.name} {choice.settings}"
        for served, known, engine in self._made:
            if served is model.model and known == kind:
                return cast("TransformersEngine", engine)
        services = {"model": model, "lockstep": ws.lockstep, "role": role}
        context = PluginContext(format=model.format, seed=ws.seed("engine", role), services=services)
        engine = ws.plugins.create("engine", choice.name, choice.settings, context)
        if ws.team is not None and choice.name == "transformers":
            from dynaweb.backends.team_engine import TeamEngine

            engine = TeamEngine(ws.team, engine, model.format.pad_id)
        self._made.append((model.model, kind, engine))
        ws.meter.engines.append(engine)
        return cast("TransformersEngine", engine)

    def require(self) -> None:
        """Raise `MissingError` now, not after an hour, when a chosen engine or the backend is not installed."""
        recipe = self._ws.recipe
        for role in ("policy", "wm", "reward"):
            name = recipe.engine_of(role).name
            if name != "transformers":
                getattr(self._ws.plugins.load_class("engine", name), "require", lambda: None)()
        if recipe.backend.name == "deepspeed":
            from dynaweb.backends.zero_config import import_deepspeed

            import_deepspeed()

    async def close(self) -> None:
        """End them; later roles get new ones."""
        made, self._made = self._made, []
        for _, _, engine in made:
            await close(engine)
