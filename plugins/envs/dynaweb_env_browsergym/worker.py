"""Runs where BrowserGym is installed, imports nothing of ours: questions on stdin, answers on stdout, a line each.

    {"op": "list", "module": "browsergym.miniwob"}                   -> {"ids": [...]}, or {"missing": "..."}
    {"op": "reset", "id": "browsergym/miniwob.click-test", "seed": 3} -> a page, with its goal
    {"op": "step", "action": "click('12')"}                           -> a page, with reward, terminated, truncated

A page is {"goal", "url", "tabs", "current", "nodes", "bids", "boxes", "window", "error"}: the nodes are those of
Chromium's accessibility tree, `bids` maps their backend ids to BrowserGym's, and `boxes` to [x, y, width, height] in
CSS pixels of the `window`, whose [width, height] is told too. With `"picture": true` at the reset it also has a
`picture`.
"""

from __future__ import annotations

import base64
import functools
import importlib
import importlib.util
import io
import json
import os
import sys
import threading
import time
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

# Benchmarks print what they like; the answers go where nobody else writes.
ANSWERS = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)


class Quiet(SimpleHTTPRequestHandler):
    """Static files without a log line for each."""

    def log_message(self, *args: object) -> None:
        """Say nothing."""


def serve_miniwob() -> None:
    """Serve MiniWoB's pages from the package beside us, unless somebody does already."""
    spec = importlib.util.find_spec("miniwob")
    if os.environ.get("MINIWOB_URL") or spec is None or not spec.submodule_search_locations:
        return
    folder = Path(next(iter(spec.submodule_search_locations))) / "html"
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.environ["MINIWOB_URL"] = f"http://127.0.0.1:{server.server_port}/miniwob/"


def use_chromium(path: str) -> None:
    """Every browser is started from this file: BrowserGym starts a second one for its chat, without our settings."""
    from playwright.sync_api import BrowserType

    launch: Any = BrowserType.launch

    def launch_ours(self: Any, **options: Any) -> Any:
        return launch(self, **{**options, "executable_path": path})

    setattr(BrowserType, "launch", launch_ours)  # noqa: B010 - the type checker refuses the plain form


def patient(validate: Any, seconds: float = 1.0) -> Any:
    """A task's own look at its page, asked once more when it fails: an action may have begun to leave the page, whose
    scripts are gone before its address is."""

    @functools.wraps(validate)
    def again(*arguments: Any) -> Any:
        try:
            return validate(*arguments)
        except Exception as error:
            print(f"the task could not look at its page, and looks again: {error}", file=sys.stderr)
            time.sleep(seconds)
            return validate(*arguments)

    return again


class Bridge:
    """One BrowserGym environment at a time."""

    def __init__(self) -> None:
        self.env: Any = None
        self.id = ""
        self.goal = ""
        self.wants_picture = False

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """Do what is asked."""
        answer: dict[str, Any] = getattr(self, f"do_{question.pop('op')}")(**question)
        return answer

    def do_list(self, module: str) -> dict[str, Any]:
        """The ids that a module registers; `missing` says what cannot be imported."""
        import gymnasium

        try:
            importlib.import_module(module)
        except ImportError as error:
            return {"missing": str(error)}
        return {"ids": sorted(name for name in gymnasium.registry if name.startswith("browsergym/"))}

    def do_reset(self, id: str, seed: int, module: str, picture: bool = False) -> dict[str, Any]:
        """Start an episode. `picture`: pages come with one."""
        import gymnasium

        self.wants_picture = picture

        importlib.import_module(module)
        if self.id != id:
            self.do_close()
            from browsergym.core.action.highlevel import HighLevelActionSet

            actions = HighLevelActionSet(["chat", "infeas", "bid", "nav", "tab"], multiaction=True, strict=False)
            self.env = gymnasium.make(id, headless=True, action_mapping=actions.to_python_code)
            self.id = id
        observation, _ = self.env.reset(seed=seed)
        self.goal = str(observation["goal"])
        task = self.env.unwrapped.task
        task.validate = patient(task.validate)
        return self.page(observation)

    def do_step(self, action: str) -> dict[str, Any]:
        """Act."""
        observation, reward, terminated, truncated, _ = self.env.step(action)
        state = {"reward": float(reward), "terminated": bool(terminated), "truncated": bool(truncated)}
        return {**self.page(observation), **state}

    def do_close(self) -> dict[str, Any]:
        """End the environment."""
        if self.env is not None:
            self.env.close()
        self.env, self.id = None, ""
        return {}

    def page(self, observation: dict[str, Any]) -> dict[str, Any]:
        """An observation as plain data."""
        nodes = observation["axtree_object"]["nodes"]
        spaces = {
            str(n["backendDOMNodeId"]): n["browsergym_id"]
            for n in nodes
            if "backendDOMNodeId" in n and n.get("browsergym_id")
        }
        properties = observation["extra_element_properties"]
        boxes = {backend: properties[bid]["bbox"] for backend, bid in spaces.items() if bid in properties}
        page = self.env.unwrapped.page
        # Of MiniWoB's pages it tells boxes on an enlarged picture.
        scale = getattr(page, "_bgym_scale_factor", 1.0)
        size = page.viewport_size or {}
        return {
            **(self.picture(observation) if self.wants_picture else {}),
            "goal": self.goal,
            "url": observation["url"],
            "tabs": list(zip(observation["open_pages_titles"], observation["open_pages_urls"], strict=True)),
            "current": int(observation["active_page_index"][0]),
            "nodes": nodes,
            "bids": spaces,
            "boxes": {backend: [side / scale for side in box] for backend, box in boxes.items() if box},
            "window": [size[side] for side in ("width", "height") if side in size],
            "focused": observation["focused_element_bid"],
            "error": observation["last_action_error"],
        }

    def picture(self, observation: dict[str, Any]) -> dict[str, Any]:
        """`picture` as PNG in base64, or `no_picture` with the reason."""
        try:
            from PIL import Image

            out = io.BytesIO()
            Image.fromarray(observation["screenshot"]).save(out, "PNG")
            return {"picture": base64.b64encode(out.getvalue()).decode()}
        except Exception as error:
            return {"no_picture": f"{type(error).__name__}: {error}"}


def plain(value: object) -> object:
    """What JSON does not know: arrays and numbers of NumPy."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def main() -> None:
    """Answer until the input ends."""
    if len(sys.argv) > 1 and sys.argv[1]:
        use_chromium(sys.argv[1])
    serve_miniwob()
    bridge = Bridge()
    for line in sys.stdin:
        try:
            answer = bridge.answer(json.loads(line))
        except Exception as error:
            answer = {"failed": f"{type(error).__name__}: {error}"}
        ANSWERS.write(json.dumps(answer, default=plain) + "\n")
        ANSWERS.flush()
    bridge.do_close()


if __name__ == "__main__":
    main()
