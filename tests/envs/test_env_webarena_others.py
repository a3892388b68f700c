"""Against other people's code: WebArena's own evaluators, and the scorer of WebArena-Verified. Both need environments
of their own (`dynaweb env install libwebarena`, `dynaweb env install webarena-verified`)."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import pytest_asyncio
from folders import KITS
from webarena_stubs import stub_sites

from dynaweb.protocols import EnvironmentContext
from dynaweb.runs import sidecar
from dynaweb.types import Action, Step, Trajectory
from dynaweb.web import evaluators
from dynaweb_env_webarena import WebarenaConfig, functions, sites, upstream
from dynaweb_env_webarena.env import WebarenaSource

# Before any test points the cache elsewhere.
ROOT = sidecar.root()
PYTHONS = {name: sidecar._python(ROOT / name) for name in sidecar.SIDECARS}
DATA = next(iter(PYTHONS["webarena-verified"].parent.parent.glob("lib*/**/webarena-verified.json")), None)


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not PYTHONS[name].exists(), reason=f"needs: dynaweb env install {name}")


# --- the packages' tasks ---

URLS = {site: f"http://{site.replace('_', '-')}.example" for site in sites.NAMES}
SETS = {"raw": "libwebarena", "lite": "browsergym-webarenalite", "verified": "webarena-verified"}


@pytest.mark.parametrize(
    ("chosen", "count"),
    [pytest.param(name, count, marks=needs(SETS[name])) for name, count in (("raw", 812), ("lite", 165))],
)
def test_every_packaged_task_can_be_played_and_graded(chosen: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sidecar, "root", lambda: ROOT)
    loaded = WebarenaSource(WebarenaConfig(set=chosen, urls=URLS), EnvironmentContext()).catalogue("test")  # type: ignore[arg-type]
    assert len(loaded) == count == len({task.id for task in loaded})
    for task in loaded:
        assert "__" not in task.start_url and task.start_url.startswith("http://"), task.id
        assert set(task.evaluation["eval_types"]) <= {"string_match", "url_match", "program_html"}
        assert set(task.evaluation["reference_answers"] or {}) <= {"exact_match", "must_include", "fuzzy_match"}
        for target in task.evaluation["program_html"]:
            assert set(target["required_contents"]) <= {"exact_match", "must_include", "fuzzy_match"}
            for address in (target["url"], target["locator"]):
                call = functions._CALL.match(address)
                known = {*functions._URLS, *functions._VALUES, "gitlab_get_project_memeber_role"}
                assert not address.startswith("func:") or (call is not None and call[1] in known), (task.id, address)


@needs("webarena-verified")
def test_the_tasks_of_webarena_verified_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sidecar, "root", lambda: ROOT)
    for chosen, count in (("verified", 812), ("hard", 258)):
        config = WebarenaConfig(set=chosen, evaluator="verified", urls=URLS)  # type: ignore[arg-type]
        assert len(WebarenaSource(config, EnvironmentContext()).catalogue("test")) == count


# --- WebArena's own evaluators ---

PLAIN = ["blue", "Banana", "Sony TV", "yes", "green tea", "Ann Lee", "two weeks"]
TRICKY = ["0", "5", "a", "x", "$0.00", "$10.50", "12", "Sony  TV", "it's", "N/A", "5.", "‘hi’"]
HOSTS = ["http://shop.x", "http://shop.x", "https://shop.x", "http://SHOP.x:80"]
PATHS = ["", "/", "/a", "/a", "/a/b", "/c", "/ab", "/b/a", "//a", "/a%20b", "/a b", "/a/"]
QUERIES = ["", "", "?q=1", "?q=2", "?q=1&r=3", "?r=3&q=1", "?q=", "/?q=1", "#top", "?q=1#top"]
LOCATORS = ["document.one", "[...document.two", "document.throws", ""]


class FakeSession:
    """Shows what a case says."""

    def __init__(self, case: Mapping[str, Any]) -> None:
        self.case = case

    async def html(self, url: str) -> str:
        return str(self.case["page"])

    async def evaluate(self, url: str, script: str) -> Any:
        value = self.case["values"][script]
        if value == "throws":
            raise evaluators.ConfigError(script)
        return value


class Maker:
    """Makes (answer, url, page) cases with their evaluation, half of them near their reference."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def word(self) -> str:
        return self.rng.choice(PLAIN if self.rng.random() < 0.65 else TRICKY)

    def text(self, near: str) -> str:
        words = [self.word() for _ in range(self.rng.randint(0, 2))]
        if self.rng.random() < 0.7 or not words:
            words.insert(self.rng.randint(0, len(words)), near)
        text = " ".join(words)
        ways = [text, text, text.upper(), f"'{text}'", f'"{text}"', f"  {text}\n", f"{text}.", f"The {text}, so"]
        return self.rng.choice(ways)

    def reference(self) -> str:
        return " |OR| ".join(self.word() for _ in range(1 if self.rng.random() < 0.85 else 2))

    def wanted(self) -> dict[str, Any]:
        if self.rng.random() < 0.4:
            return {"exact_match": self.reference()}
        return {"must_include": [self.reference() for _ in range(self.rng.choice([1, 1, 2]))]}

    def url(self) -> str:
        return self.rng.choice(HOSTS) + self.rng.choice(PATHS) + self.rng.choice(QUERIES)

    def case(self) -> dict[str, Any]:
        """One case."""
        rng = self.rng
        kinds = rng.choice([["string_match"], ["url_match"], ["program_html"], ["url_match", "string_match"]])
        answers, contents = self.wanted(), self.wanted()
        urls = [self.url() for _ in range(rng.choice([1, 1, 1, 2]))]
        ended = urls[0] + rng.choice(["", "", "/b", "#x"]) if rng.random() < 0.6 else self.url()
        near, inside = _flat(answers)[0].split(" |OR| ")[-1], _flat(contents)[0].split(" |OR| ")[-1]
        target = {
            "url": rng.choice(["last", "http://x/"]),
            "locator": rng.choice(LOCATORS),
            "required_contents": contents,
        }
        return {
            "answer": rng.choice([self.text(near), self.text(near), near, ""]),
            "url": ended,
            "page": f"<p>{self.text(inside)} &amp; more</p>",
            "values": {
                "document.one": rng.choice([self.text(inside), inside]),
                "[...document.two": rng.choice([inside, None, True, 5]),
                "document.throws": "throws",
            },
            "eval": {
                "eval_types": kinds,
                "reference_answers": answers,
                "reference_url": " |OR| ".join(urls),
                "url_note": "GOLD in PRED",
                "program_html": [target],
            },
        }


def cases(seed: int, count: int) -> list[dict[str, Any]]:
    """Generated cases."""
    maker = Maker(seed)
    return [maker.case() for _ in range(count)]


Verdicts = list[tuple[dict[str, Any], Any]]


@pytest.fixture(scope="module")
def verdicts() -> tuple[Verdicts, Verdicts]:
    """Cases with what libwebarena says of them, for our copy of its evaluator and for the repaired one.

    One process gives all, because its imports take longer than its work.
    """
    same, repaired = cases(0, 600), cases(1, 1500)
    worker = KITS / "upstream_worker.py"
    answers = sidecar.ask(PYTHONS["libwebarena"], worker, [*same, *repaired], timeout=120)
    both = list(zip([*same, *repaired], answers, strict=True))
    return both[: len(same)], both[len(same) :]


@needs("libwebarena")
async def test_our_upstream_evaluator_is_webarenas_own(verdicts: tuple[Verdicts, Verdicts]) -> None:
    theirs = [wanted for _, wanted in verdicts[0]]
    assert not [one for one in theirs if isinstance(one, str)]
    assert {0.0, 1.0} == set(theirs) and 100 < sum(theirs) < 500
    for case, wanted in verdicts[0]:
        verdict = await upstream.evaluate(
            case["eval"],
            intent="x",
            answer=case["answer"],
            url=case["url"],
            session=FakeSession(case),
            judge=None,  # type: ignore[arg-type]
        )
        assert verdict.score == wanted, (case, verdict)


@needs("libwebarena")
async def test_the_repaired_evaluator_differs_only_where_it_is_documented(
    verdicts: tuple[Verdicts, Verdicts],
) -> None:
    alike = differing = 0
    for case, wanted in verdicts[1]:
        verdict = await evaluators.evaluate(
            case["eval"],
            answer=case["answer"],
            url=case["url"],
            session=FakeSession(case),  # type: ignore[arg-type]
        )
        if documented(case):
            differing += verdict.score != wanted
            continue
        alike += 1
        assert verdict.score == wanted, (case, verdict)
    assert alike >= 200 and differing > 50, (alike, differing)


def documented(case: Mapping[str, Any]) -> bool:
    """Whether a case touches a line of the table of differences in `dynaweb_env_webarena.upstream`."""
    evaluation = case["eval"]
    kinds = evaluation["eval_types"]
    return any(
        (
            "string_match" in kinds and _texts_differ(_flat(evaluation["reference_answers"]), case["answer"]),
            "string_match" in kinds and not case["answer"],
            "url_match" in kinds and _addresses_differ(evaluation["reference_url"], case["url"]),
            "program_html" in kinds and _page_differs(evaluation["program_html"][0], case),
        )
    )


def _texts_differ(references: list[str], text: str) -> bool:
    joined = any(" |OR| " in one for one in references)
    short = any(len(one) <= 2 or one.strip("$").replace(".", "").isdigit() for one in references)
    spaced = any("  " in one or "’" in one for one in [*references, text.strip()]) or "\n" in text.strip()
    # Two kinds of outer quotes, and quotes that belong to the words.
    quoted = any(mark in text.strip()[1:-1] for mark in "'\"") or "it's" in references
    return joined or short or spaced or quoted


def _addresses_differ(reference: str, url: str) -> bool:
    parts = [upstream.urlparse(one) for one in (*reference.split(" |OR| "), url)]
    odd = any(
        "//" in one.path or "%" in one.path or " " in one.path or one.netloc != one.netloc.lower() for one in parts
    )
    return odd or _paths_differ(parts) or _queries_differ(parts)


def _paths_differ(parts: list[Any]) -> bool:
    """Paths that upstream finds anywhere, or with another slash at the end."""
    *references, ended = [one.path.rstrip("/") for one in parts]
    slashes = any(one.path.endswith("/") and (one.query or one.fragment) for one in parts)
    anywhere = any(ended != one and not ended.startswith(one + "/") and one in ended for one in references)
    root = any(not one and ended for one in references)
    return slashes or anywhere or root


def _queries_differ(parts: list[Any]) -> bool:
    """Several references pool their query keys upstream, and empty values are dropped there."""
    return len(parts) > 2 or any(one.query.endswith("=") for one in parts)


def _page_differs(target: Mapping[str, Any], case: Mapping[str, Any]) -> bool:
    text = case["page"] if not target["locator"] else case["values"][target["locator"]]
    if text == "throws":
        text = ""
    return not isinstance(text, str) or _texts_differ(_flat(target["required_contents"]), text) or "|" in str(target)


def _flat(references: Mapping[str, Any]) -> list[str]:
    (value,) = references.values()
    return value if isinstance(value, list) else [value]


# --- WebArena-Verified ---


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scored() -> AsyncIterator[WebarenaSource]:
    """Tasks of WebArena-Verified on stub sites, with one browser for all episodes."""
    with stub_sites() as stub:
        urls = dict.fromkeys(("gitlab", "reddit", "shopping_admin"), stub.url)
        config = WebarenaConfig(
            path=str(DATA),
            evaluator="verified",
            urls=urls,
            headers={site: {"X-Auto-Login": "ann"} for site in urls},
            view="compact",
            verified_python=str(PYTHONS["webarena-verified"]),
        )
        source = WebarenaSource(config, EnvironmentContext())
        yield source
        await source.close()


TODOS = Action("click", target_role="link", target_name="Todos")
FORUM = Action("click", target_role="link", target_name="Forum")
POST = Action("click", target_role="button", target_name="Post")
QUESTION = "what is the recommended console to buy these days?"


def title(text: str) -> Action:
    return Action("type", text=text, target_role="textbox", target_name="Title")


def stop(text: str = "") -> Action:
    return Action("stop", text=text)


@needs("webarena-verified")
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("number", "actions", "score"),
    [
        (44, (TODOS, stop("done")), 1.0),
        (44, (FORUM, stop("done")), 0.0),
        (600, (FORUM, title(QUESTION), POST, stop("done")), 1.0),
        (600, (FORUM, title("which console?"), POST, stop("done")), 0.0),
        (0, (stop("Quest Lumaflex™ Band"),), 1.0),
        (0, (stop("Sprite Yoga Strap"),), 0.0),
    ],
)
async def test_real_episodes_are_scored_by_webarena_verified(
    scored: WebarenaSource, number: int, actions: tuple[Action, ...], score: float
) -> None:
    task = next(task for task in scored.catalogue("test") if task.id == str(number))
    environment = scored.environment()
    page, steps = await environment.reset(task, 0), []
    for action in actions:
        ids = [node.id for node in page.nodes if (node.role, node.name) == (action.target_role, action.target_name)]
        taken = Action(action.kind, ids[0] if ids else None, action.text)
        steps.append(Step(page, taken))
        result = await environment.step(taken)
        assert not result.error
        page = result.observation
    verdict = await scored.evaluate(environment, Trajectory("e", task, tuple(steps), page, "real", "stop"))
    await environment.close()
    assert verdict.score == score, verdict
