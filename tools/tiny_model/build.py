"""Building the corpus: walks and judged episodes on the pre-training sites, in parallel processes, seeded by site."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import Tokenizer

from dynaweb.policy.prompt_formats import CompactFormat
from dynaweb.policy.tokenizer import build_tokenizer
from dynaweb.protocols import EnvironmentContext
from dynaweb.runs.seeding import derive
from dynaweb.types import Observation, Task
from dynaweb_env_sites import SitesConfig
from dynaweb_env_sites.content import Words, locale_of
from dynaweb_env_sites.env import SitesSource
from dynaweb_env_sites.tasks import sites_tasks
from tools.tiny_model.corpus import Corpus, Sample
from tools.tiny_model.judging import Episodes
from tools.tiny_model.samples import Maker
from tools.tiny_model.seeking import Atlas, Decision, Seeker, survey
from tools.tiny_model.walks import Walk, Wanderer

if TYPE_CHECKING:
    from dynaweb.web.session import Session

HOLDOUT = 1_000
"""Site seeds of the pre-training split from here on are kept for the probes."""

EPISODE_SHARE = 0.25
"""Share of the played tasks whose page changes become samples too; near misses of a task never do."""


@dataclass(frozen=True, slots=True)
class BuildConfig:
    """How much is made of each site seed.

    On each of its sites: `walks` of `steps` random actions, a survey of `clicks` links, and `goals` on what they found;
    and `rounds` judged episodes of each task template.
    """

    sites: int = 320
    probe_sites: int = 24
    walks: int = 6
    steps: int = 12
    clicks: int = 60
    goals: int = 48
    rounds: int = 2
    seed: int = 0
    vocabulary: int = 2048


class SiteSeed:
    """One pre-training world: its walks and its judged episodes."""

    def __init__(self, source: SitesSource, seed: int, config: BuildConfig) -> None:
        self.source = source
        self.seed = seed
        self.config = config
        self.rng = random.Random(derive(config.seed, "pretrain", seed))
        self._words = Words(derive(config.seed, "drill", seed), "pretrain", locale_of(seed), "drill")

    def word(self) -> str:
        """A pseudo-word of the pre-training split."""
        return self._words.word()

    def tasks(self) -> list[Task]:
        """Every template `2 * rounds` times; neighbours of the same template are siblings."""
        count = per_template(self.config.rounds * 2)
        return sites_tasks("pretrain", count, derive(self.seed, "tasks"), site_seeds=[self.seed])

    async def explored(self) -> list[tuple[list[Walk], list[Decision]]]:
        """For each site: random walks from its home page, and goals on the pages that they found."""
        explored = []
        for start in {task.start_url.split("/")[2]: task for task in self.tasks()}.values():
            environment = self.source.environment()
            await environment.reset(start, self.seed)
            walks = await self._walks(environment.session, home(start.start_url))
            await environment.reset(start, self.seed)
            explored.append((walks, await self._goals(environment.session, walks)))
            await environment.close()
        return explored

    async def _walks(self, session: Session, start: str) -> list[Walk]:
        await session.goto(start)
        words = [self.word().capitalize() for _ in range(6)] + names(await session.observe())
        wanderer = Wanderer(session, derive(self.config.seed, self.seed, start))
        return [await wanderer.walk(start, words, self.config.steps, index) for index in range(self.config.walks)]

    async def _goals(self, session: Session, walks: list[Walk]) -> list[Decision]:
        atlas = Atlas()
        for walk in walks:
            atlas.learn(walk)
        first = walks[0].pages[0].url
        await survey(session, atlas, first, self.config.clicks)
        seeker = Seeker(session, atlas, first, self.rng, self.word)
        decisions = []
        for index in range(self.config.goals):
            start = first if self.rng.random() < 0.7 else self.rng.choice(sorted(atlas.links))
            if index % 7 == 6 or not atlas.places:
                decisions += await seeker.missing(start)
            else:
                decisions += await seeker.goal(start, self.rng.choice(sorted(atlas.places)))
        return decisions

    async def samples(self, prompts: CompactFormat) -> list[Sample]:
        """All training sequences of this world."""
        maker = Maker(prompts, self.word, self.rng)
        samples = []
        for walks, goals in await self.explored():
            intents = [decision.intent for decision in goals]
            samples += [sample for walk in walks for sample in maker.of_walk(walk, intents)]
            samples += maker.of_goals(goals)
        environment = self.source.environment()
        episodes = Episodes(self.source, environment, self.word)
        for task, sibling in siblings(self.tasks()):
            verdicts = await episodes.verdicts(task, sibling, self.rng)
            samples += [maker.of_verdict(one) for one in verdicts]
            if self.rng.random() < EPISODE_SHARE:
                samples += maker.of_episode(verdicts[0].trajectory)
        await environment.close()
        return samples


def siblings(tasks: list[Task]) -> Iterator[tuple[Task, Task]]:
    """Each task with another one of its template, where there is one."""
    by_template: dict[str, list[Task]] = {}
    for task in tasks:
        by_template.setdefault(task.template, []).append(task)
    for group in by_template.values():
        for i, task in enumerate(group):
            yield task, group[i - 1]


def per_template(times: int) -> int:
    """How many tasks give every template `times` turns."""
    from dynaweb_env_sites.tasks import registry

    return times * len(registry())


def home(url: str) -> str:
    """The first page of a url's site."""
    return "/".join(url.split("/")[:3]) + "/"


def names(page: Observation) -> list[str]:
    """Names on a page that are worth searching for."""
    return [node.name for node in page.nodes if node.role == "link" and " " in node.name][:6]


def tokenizer_texts(config: BuildConfig, sites: int = 60) -> Iterator[str]:
    """Names, labels and goals of some sites, for the tokenizer."""
    source = SitesSource(SitesConfig(driver="static"), EnvironmentContext())
    for seed in range(sites):
        world = SiteSeed(source, seed, config)
        for task in world.tasks():
            yield task.intent
        for walks, _ in asyncio.run(world.explored()):
            for page in (page for walk in walks for page in walk.pages):
                yield page.url
                yield from (node.name for node in page.nodes)
                yield from (node.value for node in page.nodes if node.value)


def make_tokenizer(config: BuildConfig, path: Path) -> Tokenizer:
    """Train and save the tokenizer."""
    tokenizer = build_tokenizer(tokenizer_texts(config), config.vocabulary)
    tokenizer.save(str(path))
    return tokenizer


def build_part(config: BuildConfig, seeds: list[int], tokenizer: Path, out: Path) -> Path:
    """The samples of some site seeds, written to `out`."""
    source = SitesSource(SitesConfig(driver="static"), EnvironmentContext())
    prompts = CompactFormat(Tokenizer.from_file(str(tokenizer)))

    async def gather() -> list[Sample]:
        return [sample for seed in seeds for sample in await SiteSeed(source, seed, config).samples(prompts)]

    Corpus.of(asyncio.run(gather())).save(out)
    return out


def build(config: BuildConfig, tokenizer: Path, folder: Path, seeds: Iterable[int], processes: int) -> Corpus:
    """The corpus of many site seeds; the result does not depend on the number of processes."""
    seeds = list(seeds)
    size = 5
    chunks = [seeds[i : i + size] for i in range(0, len(seeds), size)]
    outs = [folder / f"part-{chunk[0]:05d}.npz" for chunk in chunks]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        jobs = [pool.submit(build_part, config, c, tokenizer, o) for c, o in zip(chunks, outs, strict=True)]
        parts = [Corpus.load(job.result()) for job in jobs]
    return Corpus.join(parts)
