"""Which plugins a recipe uses, and whether its parts go together: asked before anything is made, also by a dry run.

Nothing here imports torch. What only the parts themselves can say (an optimizer, a tokenizer) is in
`dynaweb.stages.preflight`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dynaweb.config.resolving import dreamed_tasks
from dynaweb.config.validate import Problems
from dynaweb.errors import ConfigError
from dynaweb.hookspecs import CORE_FORMATS

if TYPE_CHECKING:
    from dynaweb.config.recipe import Recipe
    from dynaweb.hookspecs import Kind
    from dynaweb.plugin.registry import Plugins, Settings

ROLES = ("policy", "wm", "reward")
"""Who has an engine."""


def used_plugins(recipe: Recipe, plugins: Plugins) -> list[tuple[Kind, str]]:
    """Kind and name of every plugin that a recipe uses: its choices, the environments of tasks and evaluation, engines,
    observers, the prompt layer, and the judges that a judge is made of."""
    return list(dict.fromkeys((kind, name) for kind, name, _ in used_settings(recipe, plugins)))


def used_settings(recipe: Recipe, plugins: Plugins) -> list[tuple[Kind, str, Settings | None]]:
    """`used_plugins` with the settings of each use, on which it depends what has to be installed; None: unknown."""
    used: list[tuple[Kind, str, Settings | None]] = [(one.kind, one.name, one.config) for one in recipe.choices()]
    if (dreamed := dreamed_tasks(plugins, recipe.env.name)) is not None:
        tasks, settings = str(getattr(recipe.env.config, "tasks", dreamed)), recipe.env.config
        used.append(("env", tasks, getattr(settings, "task_settings", None)))
    if recipe.eval.env:
        used.append(("env", recipe.eval.env, recipe.eval.env_settings))
    placed = placed_roles(recipe) if recipe.cluster.address else ()
    for role in ROLES:
        engine = recipe.engine_of(role)
        # The cluster's servers may have a Python of their own.
        elsewhere = {"servers": (recipe.cluster.address,)} if role in placed else {}
        used.append(("engine", engine.name, {**engine.settings, **elsewhere}))
    used += [("observer", name, None) for name in recipe.run.observers]
    if recipe.model.format not in CORE_FORMATS["prompt"]:
        used.append(("format", recipe.model.format, None))
    if "combines" in plugins.find("reward", recipe.reward.name).spec.capabilities:
        used += [("reward", str(name), None) for name in getattr(recipe.reward.config, "judges", {})]
    return used


def used_extras(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Optional dependency groups of dynaweb that settings need, each with the setting."""
    if recipe.backend.name == "deepspeed":
        yield "deepspeed", "backend.name = deepspeed"
    if recipe.cluster.address:
        yield "ray", f"cluster.address = {recipe.cluster.address}"
    if recipe.observation.pictures:
        yield "vision", f"observation.modality = {recipe.observation.modality}"
    for name in ("sft", "wm_fit", "rl"):
        if getattr(recipe, name).lora_rank:
            yield "lora", f"{name}.lora_rank"


def check_agreement(recipe: Recipe, plugins: Plugins) -> None:
    """Raise `ConfigError` with everything that clashes in a recipe whose parts are each valid alone."""
    checks = [
        check_needs,
        check_scored,
        check_lookahead,
        check_offline,
        check_pictures,
        check_cluster,
        check_backend,
        *([check_refresh, check_validation] if dreams(recipe, plugins) else []),
    ]
    problems = Problems()
    for check in checks:
        try:
            check(recipe, plugins)
        except ConfigError as error:
            problems.texts.append(str(error))
    problems.check()


def dreams(recipe: Recipe, plugins: Plugins) -> bool:
    """Whether a recipe's environment dreams."""
    return "dreams" in plugins.find("env", recipe.env.name).spec.capabilities


def check_needs(recipe: Recipe, plugins: Plugins) -> None:
    """Raise `ConfigError` where a recipe leaves settings to its user, and they are not set."""
    if recipe.needs:
        examples = "".join(f"\n      {path}: {example}" for path, example in recipe.needs.items())
        raise ConfigError(
            f"recipe {recipe.name} leaves {len(recipe.needs)} of its settings to you; set each as in its example, or "
            f"have a recipe of your own written by `dynaweb new recipe`:{examples}"
        )


def check_scored(recipe: Recipe, plugins: Plugins) -> None:
    """Raise `ConfigError` when the judge cannot score what the environment gives: a verdict needs real pages."""
    able = plugins.find("reward", recipe.reward.name).spec.capabilities & {"dream", "real"}
    needed = "dream" if dreams(recipe, plugins) else "real"
    if able and needed not in able:
        raise ConfigError(
            f"reward {recipe.reward.name!r} cannot score {needed} episodes, and env {recipe.env.name!r} gives only "
            "those; use --reward self-assess with dreams, or --env sites with --reward checker"
        )


def check_lookahead(recipe: Recipe, plugins: Plugins) -> None:
    """Raise `ConfigError` where an agent is to look ahead and there is no world model to look ahead in."""
    if recipe.agent.kind == "lookahead" and not dreams(recipe, plugins):
        raise ConfigError(
            f"agent.kind = lookahead imagines with a world model, and env {recipe.env.name!r} has none; use --env dream"
        )


def check_offline(recipe: Recipe, plugins: Plugins) -> None:
    """Raise `ConfigError` for recorded episodes where none can be recorded."""
    if recipe.offline.episodes and dreams(recipe, plugins):
        raise ConfigError(
            f"offline.episodes records real episodes, and env {recipe.env.name!r} dreams; use --env sites, or set "
            "offline.episodes = 0"
        )
    if recipe.offline.episodes and recipe.rl.max_staleness:
        raise ConfigError(
            f"rl.max_staleness = {recipe.rl.max_staleness} lets rollouts run ahead of training, and offline.episodes "
            "plays none while the policy learns; set one of the two to 0"
        )
    if recipe.offline.episodes and recipe.phases.count > 1:
        raise ConfigError(
            "recorded episodes are of the environment's own tasks; set offline.episodes = 0, or phases.count = 1"
        )


def check_backend(recipe: Recipe, plugins: Plugins) -> None:
    """Raise `ConfigError` for what FSDP2 does not do."""
    if recipe.backend.name != "fsdp":
        return
    wanted = {
        "backend.offload": recipe.backend.offload,
        "backend.config": recipe.backend.config,
        "observation.train_vision": recipe.observation.train_vision,
    }
    if settings := [path for path, value in wanted.items() if value]:
        raise ConfigError(
            f"backend.name = fsdp does not take {' and '.join(settings)}; leave out what is named, or set "
            "backend.name = deepspeed"
        )


def check_pictures(recipe: Recipe, plugins: Plugins) -> None:
    """Raise `ConfigError` where the policy is to see pages that nothing takes a picture of."""
    modality = recipe.observation.modality
    if not recipe.observation.pictures:
        return
    for path, name, settings in _environments(recipe, plugins):
        spec = plugins.find("env", name).spec
        if "pictures" not in spec.capabilities:
            envs = {one: plugin.spec for (kind, one), plugin in plugins.offers.items() if kind == "env"}
            able = ", ".join(sorted(one for one, offered in envs.items() if "pictures" in offered.capabilities))
            raise ConfigError(
                f"observation.modality = {modality} needs pictures of pages, and {path} {name!r} takes none; use one "
                f"of {able}, or set observation.modality = text"
            )
        if getattr(spec.config.model_validate(settings), "driver", "") == "static":
            raise ConfigError(
                f"observation.modality = {modality} needs pictures of pages, and the driver static of {path} {name!r} "
                "draws none; set its driver to chromium, or observation.modality = text"
            )
    draws = "draws" in plugins.find("wm", recipe.wm.name).spec.capabilities
    if modality == "screenshot" and dreams(recipe, plugins) and not draws:
        raise ConfigError(
            f"observation.modality = screenshot leaves nothing to see in dreams: wm {recipe.wm.name!r} writes pages as "
            "text; set observation.modality = both (text in dreams, pictures on real pages) or text, or use a world "
            "model that draws"
        )


def placed_roles(recipe: Recipe) -> list[str]:
    """The roles that the vLLM servers of a cluster answer for: those on vLLM without servers or GPUs of their own."""
    roles = [role for role in ROLES if recipe.engine_of(role).name == "vllm"] if recipe.cluster.servers else []
    settings = {role: recipe.engine_of(role).settings for role in roles}
    return [role for role in roles if not (settings[role].get("servers") or settings[role].get("replicas"))]


def check_cluster(recipe: Recipe, plugins: Plugins) -> None:
    """Raise `ConfigError` where a cluster is to place servers that nobody would ask."""
    if recipe.cluster.address and recipe.cluster.servers and not placed_roles(recipe):
        raise ConfigError(
            f"cluster.servers = {recipe.cluster.servers} places vLLM servers, and no role would ask them; set "
            "policy.engine.name = vllm (wm, reward) without servers or replicas of its own, or cluster.servers = 0"
        )
    if recipe.cluster.address and recipe.cluster.browsers and recipe.web.endpoint:
        raise ConfigError(
            f"cluster.browsers = {recipe.cluster.browsers} places browser pools, and web.endpoint names others; leave "
            "one of the two out"
        )


def _environments(recipe: Recipe, plugins: Plugins) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Setting, name and settings of the environments with real pages: that of the tasks, and that of the evaluation."""
    settings = recipe.env.config.model_dump()
    if (dreamed := dreamed_tasks(plugins, recipe.env.name)) is None:
        yield "env", recipe.env.name, settings
    else:
        yield "env.tasks", str(settings.get("tasks", dreamed)), settings.get("task_settings", {})
    if recipe.eval.env:
        yield "eval.env", recipe.eval.env, recipe.eval.env_settings


def check_refresh(recipe: Recipe, plugins: Plugins) -> None:
    """Raise `ConfigError` where the world model is to be refreshed and cannot be."""
    if not recipe.wm_fit.refresh_every:
        return
    if "trainable" not in plugins.find("wm", recipe.wm.name).spec.capabilities:
        raise ConfigError(
            f"wm_fit.refresh_every fits the world model further, and {recipe.wm.name!r} cannot be fitted; set it to 0, "
            "or use --wm delta or full-state"
        )
    if recipe.wm_fit.lora_rank:
        raise ConfigError(
            "wm_fit.refresh_every trains all weights, and wm_fit.lora_rank says that only adapters are to be trained, "
            "which are merged before the first refresh; set one of the two to 0"
        )


def check_validation(recipe: Recipe, plugins: Plugins) -> None:
    """Raise `ConfigError` where a fit is to look at held-out sites, and none are held out."""
    fit = recipe.wm_fit
    trains = fit.steps > 0 and "trainable" in plugins.find("wm", recipe.wm.name).spec.capabilities
    if fit.validate_every and trains and not fit.holdout:
        raise ConfigError(
            "wm_fit.validate_every looks at the loss on held-out sites, and wm_fit.holdout = 0 holds none out; raise "
            "wm_fit.holdout, or set wm_fit.validate_every to 0"
        )
