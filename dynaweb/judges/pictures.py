"""Pictures for judges: the last screenshots of an episode, by name for models here and as bytes for servers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dynaweb.data.images import pages_of
from dynaweb.errors import ConfigError
from dynaweb.types import Image, Trajectory

if TYPE_CHECKING:
    from dynaweb.protocols import Images, PromptFormat
    from dynaweb.types import Prompt


def last_pictures(trajectory: Trajectory, count: int) -> tuple[Image, ...]:
    """The pictures of the last `count` pages, oldest first, the page that the episode ended on included.

    A page that is both the last step's and the final one counts once. Pages before one without a picture are left out:
    a judge would take the picture of an earlier page for that of the page whose text it reads. A dream that was played
    as text has none, whatever real pages it began on or came back to.
    """
    images: list[Image] = []
    for page in () if _dreamed_as_text(trajectory) else reversed([*pages_of(trajectory)]):
        if page.screenshot is None:
            break
        if images[-1:] != [page.screenshot.image]:
            images.append(page.screenshot.image)
    return tuple(reversed(images[:count]))


def _dreamed_as_text(trajectory: Trajectory) -> bool:
    """Whether a world model that does not draw made its pages, or its policy was shown none of their pictures."""
    return trajectory.source == "dream" and (
        any(page.screenshot is None for page in pages_of(trajectory))
        or any(step.prompt.ids and not step.prompt.images for step in trajectory.steps)
    )


def picture_bytes(trajectory: Trajectory, count: int, images: Images | None) -> tuple[bytes, ...]:
    """The same as PNG bytes out of a store, for servers; of an episode whose pages have no picture, those that its
    environment has taken for judges (`EpisodeFacts.screenshots`).

    Raises `ImageError` for a picture that is missing or damaged.
    """
    if named := last_pictures(trajectory, count):
        return tuple(_store(images).get(image) for image in named)
    taken = [step.facts.screenshot for step in trajectory.steps if step.facts.screenshot]
    paths = trajectory.facts.screenshots or taken
    chosen = paths[len(paths) - min(count, len(paths)) :]
    return tuple(Path(path).read_bytes() for path in chosen if Path(path).is_file())


def seeing_prompt(prompts: PromptFormat, trajectory: Trajectory, count: int) -> Prompt:
    """What a judge here is asked, with the pictures of `last_pictures`.

    Raises `ConfigError` for a prompt layer, or a model, that cannot show pictures.
    """
    images = last_pictures(trajectory, count)
    if not images:
        return prompts.judge_prompt(trajectory)
    shown = getattr(prompts, "judge_prompt_with", None)
    if shown is None:
        raise ConfigError(
            f"reward.pictures = {count} shows a judge pictures, and the prompt layer of its model writes text "
            "alone; set reward.pictures = 0, or choose a model that sees"
        )
    prompt: Prompt = shown(trajectory, images)
    return prompt


def _store(images: Images | None) -> Images:
    if images is None:
        raise ConfigError("a judge is to see pictures, and was made outside of a run, which keeps them")
    return images
