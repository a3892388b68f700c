"""The models and engines of a run: weights, tokenizer and prompt layer, and an engine for each role.

Models are loaded where they are asked for, and shared where they are the same. An engine belongs to a model and to a
role (`policy`, `wm`, `reward`); roles that choose the same engine on the same model share it. Engines live as long as
the stage that asked for them, so that those of a finished stage are freed; what engines put into `services`, such as
the process of vLLM, lives as long as the run.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from dynaweb.config.files import expanded
from dynaweb.config.keys import code_of, decisive
from dynaweb.data.images import ImageStore
from dynaweb.errors import CheckpointError, MissingError
from dynaweb.judges.parts import judges_in
from dynaweb.pipeline.artifacts import LoadedModel, files_hash
from dynaweb.plugin import contracts
from dynaweb.protocols import (
    BaseEngine,
    Completion,
    Engine,
    EngineContext,
    GenerateRequest,
    WorldModelContext,
)
from dynaweb.runs.cache import IMAGES, default_root
from dynaweb.trainer.models import WEIGHT_FOLDERS
from dynaweb.types import Prompt

if TYPE_CHECKING:
    from torch import nn

    from dynaweb.config import Recipe
    from dynaweb.config.sections import EngineChoice
    from dynaweb.engines.scheduler import Lockstep
    from dynaweb.judges.calibration import Platt
    from dynaweb.plugin.registry import Plugins
    from dynaweb.policy.prompt_file import PromptFile
    from dynaweb.protocols import Counted, Images, PromptFormat, Service, WorldModel
    from dynaweb.trainer.distributed.team import Team
    from dynaweb.trainer.vision import ModelVision
    from dynaweb.types import Transition

Role = Literal["policy", "wm", "reward"]
ROLES: tuple[Role, ...] = get_args(Role)
DRAWS = "draws"
"""Capability of a world model that draws the pages that it predicts."""


class Models:
    """The models of a run and the engines of the stage in progress; `count` is told of every engine that is made."""

    def __init__(
        self,
        recipe: Recipe,
        plugins: Plugins,
        seed: Callable[..., int],
        count: Callable[[Counted], None],
        images: Images | None = None,
    ) -> None:
        self._recipe, self._plugins, self._seed, self.count = recipe, plugins, seed, count
        self._images: Images = images if images is not None else ImageStore(default_root() / IMAGES)
        # RL alone generates with adapters: what SFT and world models learn goes into their weights.
        self._adapter_rank = recipe.rl.lora_rank
        self._engines: list[tuple[nn.Module, str, Engine]] = []
        self._asked: dict[Role, LoadedModel] = {}
        self._ahead: tuple[Role, ...] = ()
        self.on_prompt: Callable[[Prompt], None] = lambda prompt: None
        """Told of every prompt that a prompt layer of the run writes."""
        self.services: dict[str, Service] = {}
        """What engines keep from stage to stage."""
        self.team: Team | None = None
        """The other ranks, where a launcher started several."""
        self.fitted_judge: Path | None = None
        """The folder of the judge that was fitted for this run."""
        self.learning_judge: tuple[LoadedModel, Platt] | None = None
        """The same judge while it is fitted further in an RL stage: its weights, and their calibration."""

    # Weights

    def load(self, path: Path | None = None) -> LoadedModel:
        """A model of its own: the base weights, or those in a folder, with the tokenizer that the folder brings.

        Raises `CheckpointError` when the folder's tokenizer is not that of the base model and the base model judges.
        """
        import torch

        from dynaweb.trainer.adapters import freeze_vision

        settings = self._recipe.model
        if settings.threads:
            torch.set_num_threads(settings.threads)
        judges = judges_in(self._recipe, self._plugins)
        base_judges = any(getattr(config, "model", None) == "base" for _, config in judges)
        tokenizer = self.tokenizer if path is None else tokenizer_of(path, self.tokenizer, base_judges=base_judges)
        prompts = self.format if tokenizer is self.tokenizer else self._prompts(tokenizer, str(path))
        model = self._read(str(path or settings.path))
        check_size(path or settings.path, model, tokenizer)
        if not self._recipe.observation.train_vision:
            freeze_vision(model)
        return LoadedModel(model, tokenizer, prompts, self.vision)

    def _read(self, path: str) -> Any:
        from dynaweb.trainer.models import load_model

        settings, vision = self._recipe.model, self._recipe.observation.pictures
        if self.team is None:
            return load_model(path, settings.dtype, settings.device, vision=vision)
        target = "dynaweb.trainer.models:load_model"
        return self.team.make(target, path, settings.dtype, settings.device, vision=vision)

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer of the base model, shared by all weights of the run."""
        from dynaweb.trainer.models import resolve

        return read_tokenizer(resolve(self._recipe.model.path))

    @cached_property
    def format(self) -> PromptFormat:
        """The prompt layer of the model."""
        from dynaweb.trainer.models import resolve

        return self._prompts(self.tokenizer, resolve(self._recipe.model.path))

    @cached_property
    def vision(self) -> ModelVision | None:
        """How the model of the run sees; None where pages are shown as text alone.

        All weights of a run see alike: what they were trained from has the processor. Raises `ConfigError` for a model
        that reads text alone.
        """
        if not self._recipe.observation.pictures:
            return None
        from dynaweb.trainer.models import resolve
        from dynaweb.trainer.vision import ModelVision

        return ModelVision(resolve(self._recipe.model.path), self._images.get)

    def dream_prompts(self, prompts: PromptFormat) -> PromptFormat:
        """The prompt layer of a policy in dreams: with pages as text alone, where its world model does not draw them.

        A dream begins on a real page, of which there may be a picture; shown there alone, it would say that it is real.
        """
        recipe = self._recipe
        if not recipe.observation.pictures or DRAWS in self._plugins.find("wm", recipe.wm.name).spec.capabilities:
            return prompts
        in_text: PromptFormat = cast("Any", prompts).with_modality("text")
        return in_text

    @property
    def prompt_file(self) -> PromptFile:
        """The prompt of the policy that the recipe names; one that changes nothing where it names none."""
        from dynaweb.policy.prompt_file import PromptFile

        name = self._recipe.policy.prompt
        return PromptFile.read(expanded(name)) if name else PromptFile()

    def _prompts(self, tokenizer: Any, source: str) -> PromptFormat:
        from dynaweb.policy.prompt_formats import format_for
        from dynaweb.policy.settings import PromptSettings
        from dynaweb.trainer.models import context_of, reply_ends

        recipe = self._recipe
        settings = PromptSettings(
            ends=reply_ends(source),
            template=recipe.model.template,
            context=context_of(source),
            file=self.prompt_file,
            policy_prompt=recipe.policy.max_prompt_tokens,
            policy_reply=recipe.policy.max_new_tokens,
            prompt=recipe.model.max_prompt_tokens,
            reply=lambda: getattr(recipe.wm.config, "max_new_tokens", 0),
            on_prompt=lambda prompt: self.on_prompt(prompt),
            modality=recipe.observation.modality,
            vision=self.vision,
        )
        return format_for(tokenizer, recipe.model.format, settings)

    @cached_property
    def base(self) -> LoadedModel:
        """The base model, frozen: judge, and world model when that is not fitted."""
        return self.load()

    @cached_property
    def base_engine(self) -> Engine:
        """The judge's engine on the frozen base model."""
        return self.engine(self.base, "reward")

    def world_model(
        self,
        model: LoadedModel,
        *,
        temperature: float,
        held_out: Set[str],
        transitions: Callable[[], Sequence[Transition]] = list,
    ) -> WorldModel:
        """The chosen world model on these weights; examples it shows are `transitions`, of no site in `held_out`.

        `held_out` has no default: who forgets it would measure, or play on, sites that the model was shown.
        """
        context = WorldModelContext(
            engine=self.engine(model, "wm"),
            format=model.format,
            weights=model,
            seed=self._seed("world-model"),
            temperature=temperature,
            transitions=transitions,
            held_out=held_out,
            count=self.count,
            observation=self._recipe.observation,
            images=self._images,
        )
        return cast("WorldModel", self._plugins.create("wm", self._recipe.wm.name, self._recipe.wm.config, context))

    # Keys

    @cached_property
    def base_key(self) -> str:
        """What identifies the base weights: a hash of the files in a folder, or the model's name."""
        from dynaweb.trainer.models import resolve

        source = resolve(self._recipe.model.path)
        return files_hash(Path(source)) if Path(source).is_dir() else source

    # Engines

    @cached_property
    def lockstep(self) -> Lockstep:
        """What gathers the model calls of all episodes: in lockstep where this process answers all of them."""
        from dynaweb.engines.scheduler import Lockstep

        return Lockstep(free=answered_elsewhere(self._recipe, self._plugins))

    def engine(self, model: LoadedModel, role: Role = "policy") -> Engine:
        """The engine of a role on a model, one for all roles that choose the same; its tokens count in the costs."""
        choice = self._recipe.engine_of(role)
        kind = f"{choice.name} {choice.settings}"
        self._asked[role] = model
        for served, known, engine in self._engines:
            if served is model.model and known == kind:
                return engine
        engine = self._make(model, role)
        self._engines.append((model.model, kind, engine))
        self.count(engine)
        return engine

    def _make(self, model: LoadedModel, role: Role) -> Engine:
        choice = self._recipe.engine_of(role)
        seed = self._seed("engine", role)
        context = EngineContext(
            weights=model,
            batching=self.lockstep,
            role=role,
            roles=roles_of(self._recipe, choice),
            seed=seed,
            adapter_rank=self._adapter_rank,
            services=self.services,
        )
        engine = self._plugins.create("engine", choice.name, choice.settings, context)
        if self.team is None or choice.name != "transformers":
            return completed(engine)
        from dynaweb.trainer.distributed.team_engine import TeamEngine

        return TeamEngine(self.team, engine, model.format.pad_id)

    def require(self) -> None:
        """Raise `MissingError` now, not after an hour, when a chosen engine or the backend is not installed."""
        recipe = self._recipe
        for choice in map(recipe.engine_of, ROLES):
            if choice.name != "transformers":
                cls = self._plugins.load_class("engine", choice.name, choice.settings)
                getattr(cls, "require", BaseEngine.require)()
        if recipe.backend.name != "torch":
            from dynaweb.trainer.choice import require

            require(recipe.backend.name)

    def expect(self, roles: Iterable[Role]) -> None:
        """These roles have models of their own later: what outlives their engines is started with the first engine."""
        chosen = {role: self._recipe.engine_of(role) for role in roles}
        self._ahead = tuple(
            role
            for role, choice in chosen.items()
            if choice.name != "transformers"
            and getattr(self._plugins.load_class("engine", choice.name, choice.settings), "lasting", BaseEngine.lasting)
        )

    async def start(self, *, ahead: bool = False) -> None:
        """Start what engines take long to start, side by side: those made so far, and those of `expect`, whose
        models are laid out like the ones that are there. Weights follow when they are asked."""
        engines, others = [engine for _, _, engine in self._engines], list[Engine]()
        for role in self._ahead if ahead and self._asked else ():
            if role not in self._asked:
                others.append(self._make(next(iter(self._asked.values())), role))
                self.count(others[-1])
        try:
            await asyncio.gather(*(engine.start() for engine in (*engines, *others)))
        finally:
            for engine in others:
                await engine.close()

    async def rest(self) -> None:
        """Let all engines give their memory to the trainer: a judge's engine holds as much as the policy's."""
        for _, _, engine in self._engines:
            await engine.rest()

    async def release(self) -> None:
        """Forget the engines of a finished stage, which hold on to models, and what gathered their calls."""
        await self.close()
        for name in ("lockstep", "base_engine"):
            self.__dict__.pop(name, None)

    async def close(self) -> None:
        """End what engines hold open, but not the services."""
        engines, self._engines = self._engines, []
        self._asked.clear()
        for _, _, engine in engines:
            await engine.close()

    async def close_services(self) -> None:
        """End what engines kept from stage to stage."""
        while self.services:
            _, service = self.services.popitem()
            await service.close()


class CompletedEngine(BaseEngine):
    """An engine plugin that leaves some of `Engine` out: what it has is its own, what it lacks is `BaseEngine`'s.

    Nowhere else is an engine asked what it has.
    """

    def __init__(self, plugin: Any) -> None:
        self._plugin = plugin
        self.correction = float(getattr(plugin, "correction", self.correction))
        self.stats = getattr(plugin, "stats", self.stats)

    @property
    def mismatch(self) -> Mapping[str, float]:  # type: ignore[override]
        """What it found last."""
        return getattr(self._plugin, "mismatch", {})

    async def generate(self, request: GenerateRequest) -> Completion:
        """Sample one completion."""
        return contracts.completion(self._plugin, await self._plugin.generate(request))

    async def choice_logprobs(self, prompt: Prompt, choices: tuple[int, ...]) -> tuple[float, ...]:
        """Natural-log probability of each choice."""
        answer = await self._plugin.choice_logprobs(prompt, choices)
        return contracts.choice_logprobs(self._plugin, answer, len(choices))

    def weights_changed(self) -> None:
        """Count, and hand on."""
        super().weights_changed()
        getattr(self._plugin, "weights_changed", lambda: None)()

    def detach(self) -> bool:
        """Hand on."""
        return bool(getattr(self._plugin, "detach", lambda: False)())

    async def take_weights(self) -> None:
        """Hand on, then count: until the plugin has them, requests are answered with the old weights. One that cannot
        detach is told by `weights_changed`."""
        if hasattr(self._plugin, "take_weights"):
            await self._awaited("take_weights")
            super().weights_changed()
        else:
            self.weights_changed()

    async def start(self) -> None:
        """Hand on."""
        await self._awaited("start")

    async def rest(self) -> None:
        """Hand on."""
        await self._awaited("rest")

    async def close(self) -> None:
        """Hand on."""
        await self._awaited("close")

    async def _awaited(self, name: str) -> None:
        done = getattr(self._plugin, name, lambda: None)()
        if inspect.isawaitable(done):
            await done


def completed(plugin: object) -> Engine:
    """An engine plugin with all of `Engine`."""
    return plugin if isinstance(plugin, Engine) else CompletedEngine(plugin)


def roles_of(recipe: Recipe, choice: EngineChoice) -> int:
    """How many roles choose this engine with these settings: they share a GPU."""
    return sum(recipe.engine_of(role) == choice for role in ROLES)


def answered_elsewhere(recipe: Recipe, plugins: Plugins) -> bool:
    """Whether vLLM or a server answers some calls of episodes, so that results do not repeat bit for bit anyway."""
    if any(recipe.engine_of(role).name == "vllm" for role in ROLES):
        return True
    asked = (recipe.wm.config, *(config for _, config in judges_in(recipe, plugins)))
    servers = (getattr(config, "server", None) for config in asked)
    return any(server is not None and bool(server.model) for server in servers)


def engine_key(recipe: Recipe, plugins: Plugins, *roles: str) -> dict[str, Any]:
    """What results depend on of the roles' engines, for cache keys: nothing of the engine in this process."""
    keys: dict[str, Any] = {}
    for role in roles:
        choice = recipe.engine_of(role)
        if choice.name != "transformers":
            plugin = plugins.find("engine", choice.name)
            settings = decisive(plugin.spec.config.model_validate(choice.settings))
            keys[f"{role} engine"] = {"name": choice.name, **settings, "package": code_of(plugin)}
    return keys


TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")


def world_model_weights(folder: Path | None) -> Path | None:
    """The weights in a folder, or in that of a run which fitted a world model. Raises `MissingError` where none are."""
    if folder is None:
        return None
    for part in WEIGHT_FOLDERS:
        if (folder / part / "config.json").is_file():
            return folder / part
    why = "no config.json in it" if folder.is_dir() else "no such folder"
    raise MissingError(
        f"there are no weights in {folder} ({why}); dynaweb wm fit puts them into checkpoints/world-model of its folder"
    )


def read_tokenizer(source: str) -> Any:
    """The tokenizer of a folder or of a Hugging Face name.

    Raises `CheckpointError` (a folder whose tokenizer cannot be read), `MissingError` (no such model) and `EngineError`
    (only code that comes with it could read it).
    """
    from transformers import AutoTokenizer

    from dynaweb.trainer.models import NATIVE, unknown_model, without_code

    try:
        with without_code(source):
            return AutoTokenizer.from_pretrained(source, **NATIVE)
    except (OSError, ValueError) as error:
        raise unknown_model(source, Path(source).is_dir(), error) from error


def tokenizer_of(folder: Path, base: Any, *, base_judges: bool) -> Any:
    """The tokenizer in a folder of weights; `base`, that of the base model, where there is none or it is the same.

    Raises `CheckpointError` when it is another one and the base model judges: one of the two would read tokens that it
    does not know.
    """
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        return base
    own = read_tokenizer(str(folder))
    if own.get_vocab() == base.get_vocab():
        return base
    if base_judges:
        raise CheckpointError(
            f"the weights in {folder} have another tokenizer ({len(own)} tokens) than the base model that judges them "
            f"({len(base)} tokens); set model.path to the model that they were trained from, or use --reward checker"
        )
    return own


def check_size(folder: Path | str, model: Any, tokenizer: Any) -> None:
    """Raise `CheckpointError` when a tokenizer has tokens that the weights of `folder` do not know."""
    known = model.get_input_embeddings().num_embeddings
    if len(tokenizer) > known:
        raise CheckpointError(
            f"the weights in {folder} know {known} tokens, but the tokenizer has {len(tokenizer)}: they belong to "
            "another model; set model.path to the model that they were trained from, with its own tokenizer"
        )
