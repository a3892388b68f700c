"""Print pages as `libwebarena` or `browsergym-core` do. Runs in the environment of that package, never in ours.

Standard input is one JSON object: `package`, `browser`, `hidden_roles`, `properties`, and `pages` (`url`, optional
`script` to run once loaded). Standard output is one JSON line a page: `text` and `seconds` of the observation alone.
What is a meant difference is taken out of the accessibility tree before the package's own code prints it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

VIEWPORT = {"width": 1280, "height": 720}


def reduce(nodes: list[dict[str, Any]], hidden: set[str], properties: set[str]) -> list[dict[str, Any]]:
    """Without hidden roles and properties, white space in names collapsed."""
    gone = {node["nodeId"] for node in nodes if node["role"]["value"] in hidden or _is_layout(node)}
    kept = [node for node in nodes if node["nodeId"] not in gone]
    for node in kept:
        node["childIds"] = [child for child in node.get("childIds", []) if child not in gone]
        node["properties"] = [item for item in node.get("properties", []) if item["name"] in properties]
        for key in ("name", "value"):
            if isinstance(node.get(key, {}).get("value"), str):
                node[key]["value"] = " ".join(node[key]["value"].split())
        if node.get("value", {}).get("value") == "":
            del node["value"]
        if node["role"]["value"] == "image":
            # What Chromium called it when the packages were written.
            node["role"]["value"] = "img"
    return kept


def _is_layout(node: dict[str, Any]) -> bool:
    return node["role"]["value"] == "StaticText" and "backendDOMNodeId" not in node


def webarena(page: Any, request: dict[str, Any]) -> tuple[str, float]:
    from webarena.browser_env.processors import TextObervationProcessor

    processor = TextObervationProcessor("accessibility_tree", request.get("viewport_only", False), VIEWPORT)
    client = page.context.new_cdp_session(page)
    client.send("Accessibility.enable")
    fetch = processor.fetch_page_accessibility_tree
    hidden, properties = set(request["hidden_roles"]), set(request["properties"])

    def reduced(*arguments: Any, **options: Any) -> Any:
        return reduce(fetch(*arguments, **options), hidden, properties)

    if not request.get("plain"):
        processor.fetch_page_accessibility_tree = reduced
    start = time.perf_counter()
    text = processor.process(page, client)
    return text, time.perf_counter() - start


def browsergym(page: Any, request: dict[str, Any]) -> tuple[str, float]:
    from browsergym.core import observation
    from browsergym.utils.obs import flatten_axtree_to_str

    start = time.perf_counter()
    # The marks that number elements are attributes, and with attributes Chromium shows elements that it leaves out
    # otherwise (`rowgroup`, the text of a `<b>` apart): without them it is the page's own tree that is printed.
    if request.get("plain"):
        observation._pre_extract(page, lenient=True)
    tree = observation.extract_merged_axtree(page)
    if request.get("plain"):
        observation._post_extract(page)
    else:
        tree = {"nodes": reduce(tree["nodes"], set(request["hidden_roles"]), set(request["properties"]))}
    return flatten_axtree_to_str(tree), time.perf_counter() - start


def main() -> None:
    from playwright.sync_api import sync_playwright

    request = json.load(sys.stdin)
    for name in ("REDDIT", "SHOPPING", "SHOPPING_ADMIN", "GITLAB", "WIKIPEDIA", "MAP", "HOMEPAGE"):
        os.environ.setdefault(name, "http://localhost")
    read = {"webarena": webarena, "browsergym": browsergym}[request["package"]]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=request["browser"],
            args=["--disable-site-isolation-trials", "--disable-features=IsolateOrigins,IsolateSandboxedIframes"],
        )
        page = browser.new_context(viewport=VIEWPORT).new_page()
        page.set_default_timeout(30_000)
        for item in request["pages"]:
            page.goto(item["url"])
            if item.get("script"):
                page.evaluate(item["script"])
            page.wait_for_timeout(100)
            text, seconds = read(page, request)
            sys.stdout.write(json.dumps({"url": item["url"], "text": text, "seconds": seconds}) + "\n")
            sys.stdout.flush()
        browser.close()


if __name__ == "__main__":
    main()
