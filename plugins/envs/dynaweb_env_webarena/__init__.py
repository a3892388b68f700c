"""WebArena, its subsets, WebArena-Verified, VisualWebArena, and tasks of your own in their format (`--env webarena`).

How the parts fit together: `files` finds and reads task files, `sites` knows where the sites are and how to log in,
`upstream` repeats WebArena's own evaluators (the repaired ones are `dynaweb.web.evaluators`), `judge` asks a model
where text has to be compared by meaning, `images` where one has to see, `verified` scores through the package
webarena-verified, `goals` loads the pictures that goals come with, `copies` gives each episode sites of its own, and
`env` plays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from dynaweb.config.sections import PageView, Section
from dynaweb.config.server import Server
from dynaweb.hookspecs import PluginSpec, hookimpl
from dynaweb.masking import Secret
from dynaweb.web.observation_formats import format_spec


class Login(Section):
    """How to log in to a site. The form is found by its password field."""

    username: str
    """Who."""
    password_variable: Annotated[str, Secret("variable")]
    """Environment variable that holds the password; recipes, run folders and logs never hold it."""
    page: str = "/login"
    """Path of the login page."""
    check: str = "/"
    """Path that only shows itself to somebody who is logged in, and leads elsewhere otherwise."""


class WebarenaConfig(PageView):
    """Settings of WebArena."""

    FILES: ClassVar[frozenset[str]] = frozenset({"path", "train"})

    path: str = ""
    """Task file (a JSON list, or a folder with one JSON file a task) for evaluation; empty = see `set`."""
    train: str = ""
    """Task file for training; without one there is nothing to train on, since the benchmark is for evaluation."""
    validation: str = ""
    """Task file for validation, by which lengths and checkpoints are chosen; empty = the tasks of evaluation, so that
    what was chosen by it has seen them."""
    set: Literal["raw", "lite", "verified", "hard"] = "raw"
    """Which tasks when `path` is empty: the 812 of WebArena, WebArena-Lite's 165, the 812 or the hard 258 of
    WebArena-Verified (from the installed packages libwebarena, browsergym-webarenalite or webarena-verified)."""
    evaluator: Literal["repaired", "upstream", "verified"] = "repaired"
    """`repaired`: WebArena's evaluators without their known mistakes. `upstream`: with them. `verified`: the package
    webarena-verified, on the recorded traffic."""
    urls: Mapping[str, str | tuple[str, ...]] = Field(default_factory=dict)
    """Address of each site by its name (shopping, shopping_admin, reddit, gitlab, map, wikipedia, homepage, or names of
    your own); else the variables SHOPPING, REDDIT... or WA_SHOPPING, WA_REDDIT... A list holds the addresses of copies
    of the site: each episode has a copy to itself, the first addresses of all lists, or the second ones, and so on."""
    headers: Annotated[Mapping[str, Mapping[str, str]], Secret("headers")] = Field(default_factory=dict)
    """Extra headers by site; a task's requests carry those of all its sites. `$NAME` stands for an environment
    variable, so that no file holds a secret."""
    logins: Mapping[str, Login] = Field(default_factory=dict)
    """Logins by site, beside the benchmark's own."""
    auth: str = ".auth"
    """Folder of stored logins."""
    reset_url: str = ""
    """Base address of a reset server: `GET /reset`, then `/status` until it says that it is ready; empty = no reset."""
    reset_copy: str = ""
    """Resets a copy of the sites before each episode that finds it changed, where `urls` has lists: an address that is
    fetched and answers when it is done, or a command. `{copy}` stands for the copy's number, from 1, `{sites}` for the
    sites to reset, with commas. Empty = what an episode has changed stays."""
    reset_timeout: float = Field(default=900.0, gt=0)
    """Seconds that a reset may take."""
    view: Literal["compact", "full"] = "full"
    """What the policy sees: a flat list for small models, or the filtered accessibility tree."""
    settle: float | None = Field(default=None, ge=0)
    """Most seconds that a page is waited for once it has loaded; not set = `web.settle`."""
    hosts: tuple[str, ...] = ()
    """Further hosts that pages may load from; the sites' own are always allowed, `*` is a wildcard."""
    judge: Server = Field(default_factory=Server)
    """Model that compares answers by meaning (`fuzzy_match`); without one such tasks are ungraded."""
    seeing: Server = Field(default_factory=Server)
    """Model that answers questions about images on pages (`page_image_query` of VisualWebArena); without one such tasks
    are skipped, and counted."""
    goal_images: Literal["show", "skip", "address"] = "show"
    """Tasks whose goal comes with images (`image` of VisualWebArena). `show`: a policy that sees
    (`observation.modality`) is shown them before each page; one that reads text alone skips such tasks, and counts
    them, as it does where an image cannot be loaded. `skip`: nobody plays them. `address`: they are played with the
    address of each image in the goal's text."""
    verified_python: str = ""
    """Python with webarena-verified; empty = the one that `dynaweb env install webarena-verified` made."""


@hookimpl
def dynaweb_environments() -> Sequence[PluginSpec]:
    """The environment `webarena`."""
    return [
        PluginSpec(
            name="webarena",
            target="dynaweb_env_webarena.env:WebarenaSource",
            config=WebarenaConfig,
            summary="WebArena-format tasks on your own sites; WebArena, Lite, Verified, Visual",
            extra="web",
            capabilities=frozenset({"tasks", "real", "browser", "pictures"}),
        )
    ]


@hookimpl
def dynaweb_formats() -> Sequence[PluginSpec]:
    """The formats `webarena`, `html` and `webrl`."""
    return [
        format_spec(
            "webarena",
            "dynaweb_env_webarena.formats:Webarena",
            ("dialect", "grammar", "view"),
            "Accessibility tree and actions of WebArena's agents",
        ),
        format_spec(
            "html", "dynaweb_env_webarena.webrl:Html", ("dialect",), "Simplified HTML, as WebRL's agents read it"
        ),
        format_spec("webrl", "dynaweb_env_webarena.webrl:Webrl", ("grammar",), "Actions of WebRL's agents"),
    ]
