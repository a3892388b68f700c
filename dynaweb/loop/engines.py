"""The engines and the backend of a run: made where they are asked for, named in cache keys where they matter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from dynaweb.config.code import code_of
from dynaweb.config.decisive import decisive
from dynaweb.protocols import PluginContext

if TYPE_CHECKING:
    from torch import nn

    from dynaweb.engines.transformers_engine import TransformersEngine
    from dynaweb.loop.workspace import LoadedModel, Workspace

ROLES = ("policy", "wm", "reward")


class Engines:
    """The engines of a stage."""

    def __init__(self, ws: Workspace) -> None:
        self._ws = ws
        self._made: list[tuple[nn.Module, str, Any]] = []

    def of(self, model: LoadedModel, role: str) -> TransformersEngine:
        """The engine of a role on a model, one for all roles that choose the same; its tokens count in the costs."""
        choice = self._ws.recipe.engine_of(role)
        kind = f"{choice.name} {choice.settings}"
        for served, known, engine in self._made:
            if served is model.model and known == kind:
                return cast("TransformersEngine", engine)
        engine = self._make(model, role)
        self._made.append((model.model, kind, engine))
        self._ws.meter.engines.append(engine)
        return cast("TransformersEngine", engine)

    def _make(self, model: LoadedModel, role: str) -> Any:
        ws, choice = self._ws, self._ws.recipe.engine_of(role)
        services = {"model": model, "lockstep": ws.lockstep, "role": role}
        context = PluginContext(format=model.format, seed=ws.seed("engine", role), services=services)
        engine: Any = ws.plugins.create("engine", choice.name, choice.settings, context)
        if ws.team is None or choice.name != "transformers":
            return engine
        from dynaweb.backends.team_engine import TeamEngine

        return TeamEngine(ws.team, engine, model.format.pad_id)

    def require(self) -> None:
        """Raise `MissingError` now, not after an hour, when a chosen engine or the backend is not installed."""
        recipe = self._ws.recipe
        for name in {recipe.engine_of(role).name for role in ROLES} - {"transformers"}:
            getattr(self._ws.plugins.load_class("engine", name), "require", lambda: None)()
        if recipe.backend.name == "deepspeed":
            from dynaweb.backends.zero_config import import_deepspeed

            import_deepspeed()

    async def rest(self) -> None:
        """Let them all give their memory to the trainer: a judge's engine holds as much as the policy's."""
        from dynaweb.engines.asking import rest

        for _, _, engine in self._made:
            await rest(engine)

    async def close(self) -> None:
        """End what they hold open."""
        from dynaweb.engines.asking import close

        made, self._made = self._made, []
        for _, _, engine in made:
            await close(engine)


def engine_key(ws: Workspace, *roles: str) -> dict[str, Any]:
    """What results depend on of the roles' engines, for cache keys: nothing of the engine in this process."""
    found: dict[str, Any] = {}
    for role in roles:
        choice = ws.recipe.engine_of(role)
        if choice.name != "transformers":
            plugin = ws.plugins.find("engine", choice.name)
            settings = decisive(plugin.spec.config.model_validate(choice.settings))
            found[f"{role} engine"] = {"name": choice.name, **settings, "package": code_of(plugin)}
    return found


def backend_key(ws: Workspace) -> dict[str, Any]:
    """The same of the backend. Others compute the same but for rounding, which a cached result must not mix."""
    backend = ws.recipe.backend
    return {} if backend.name == "torch" else {"backend": decisive(backend)}
