"""Small stand-ins of what a researcher brings: a chat model, a site in WebArena's format, and trajectories."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chat_families import FAMILIES
from flask import Flask, request
from werkzeug.serving import make_server

GOODS = {"tea": "4 EUR", "oats": "2 EUR", "rice": "3 EUR"}
PAGE = "<!doctype html><html lang=en><title>{0}</title><h1>{0}</h1>{1}<p><a href=/>Home</a></p></html>"


@contextmanager
def shop() -> Iterator[str]:
    """The address of a shop with a few goods, on a free port of 127.0.0.1."""
    server = make_server("127.0.0.1", 0, _app(), threaded=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _app() -> Flask:
    app = Flask("shop")

    @app.get("/")
    def home() -> str:
        links = "".join(f"<li><a href=/goods/{name}>{name.title()}</a></li>" for name in GOODS)
        form = "<form action=/search><input name=q aria-label=Search><button>Find</button></form>"
        return PAGE.format("Shop", f"<ul>{links}</ul>{form}")

    @app.get("/goods/<name>")
    def goods(name: str) -> str:
        return PAGE.format(name.title(), f"<p>Price: {GOODS[name]}</p>")

    @app.get("/search")
    def search() -> str:
        hits = [name for name in GOODS if request.args.get("q", "").lower() in name]
        return PAGE.format("Results", "".join(f"<p><a href=/goods/{name}>{name.title()}</a></p>" for name in hits))

    return app


def tasks() -> list[dict[str, Any]]:
    """Tasks of two templates: a page to open, and a price to say."""
    opened = [
        {
            "task_id": number,
            "sites": ["shop"],
            "intent": f"Open the page of {name}",
            "intent_template_id": 1,
            "start_url": "__SHOP__/",
            "require_login": False,
            "eval": {"eval_types": ["url_match"], "reference_url": f"__SHOP__/goods/{name}"},
        }
        for number, name in enumerate(GOODS)
    ]
    asked = [
        {
            "task_id": 10 + number,
            "sites": ["shop"],
            "intent": f"What is the price of {name}?",
            "intent_template_id": 2,
            "start_url": "__SHOP__/",
            "require_login": False,
            "eval": {"eval_types": ["string_match"], "reference_answers": {"must_include": [price]}},
        }
        for number, (name, price) in enumerate(GOODS.items())
    ]
    return opened + asked


def webarena_trace(address: str, name: str = "tea") -> str:
    """An episode as WebArena's agents render it: a click, and a stop."""

    def step(url: str, tree: str, said: str) -> str:
        return (
            f"<h2>New Page</h2>\n<h3 class='url'><a href={url}>URL: {url}</a></h3>\n"
            f"<div class='state_obv'><pre>{tree}</pre><div>\n"
            f"<div class='raw_parsed_prediction'><pre>{said}</pre></div><div class='parsed_action'><pre></pre></div>"
        )

    title, tab = name.title(), "Tab 0 (current): Shop\n\n"
    home = f"{tab}[1] RootWebArea 'Shop' focused: True\n\t[2] heading 'Shop'\n\t[3] link '{title}'"
    page = f"{tab}[1] RootWebArea '{title}' focused: True\n\t[5] heading '{title}'"
    head = f"<pre>task_id: {list(GOODS).index(name)}\nintent: Open the page of {name}\nsites: ['shop']\n</pre>"
    steps = step(f"{address}/", home, "The link leads there. ```click [3]```")
    return head + steps + step(f"{address}/goods/{name}", page, "It is open. ```stop []```")


def nnetnav_rows(address: str, name: str = "oats") -> list[dict[str, Any]]:
    """An episode in NNetNav's rows: a click, and a stop."""
    home = f"RootWebArea 'Shop', focused\n\t[3] link '{name.title()}', clickable"
    page = f"RootWebArea '{name.title()}', focused\n\t[5] heading '{name.title()}'\n\tStaticText 'Price: {GOODS[name]}'"

    def row(url: str, tree: str, action: str, past: str) -> dict[str, Any]:
        user = f"OBSERVATION:\n{tree}\nURL: {url}\nOBJECTIVE: Open the page of {name}\nPREVIOUS ACTIONS:\n{past}"
        reply = f"Let's think step-by-step. In summary, the next action I will perform is ```{action}```"
        messages = [{"role": "user", "content": user}, {"role": "assistant", "content": reply}]
        prompt = f"<|start_header_id|>user<|end_header_id|>\n{user}\n<|eot_id|>"
        return {
            "dataset": "own",
            "id": "n1",
            "task_name": "n1",
            "messages": messages,
            "prompt": prompt,
            "output": f"<|start_header_id|>assistant<|end_header_id|>\n{reply}\n<|eot_id|>",
        }

    return [
        row(f"{address}/", home, "click [3]", "1: None"),
        row(f"{address}/goods/{name}", page, "stop []", "1: None\n2: click [3] where [3] is link"),
    ]


def chat_model(folder: Path, family: str = "qwen-2.5") -> Path:
    """A folder with a random chat model of 20,000 weights and the tokenizer of a family."""
    import torch
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    kind = next(one for one in FAMILIES if one.name == family)
    tokenizer = kind.tokenizer()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    model = LlamaForCausalLM(config)
    ends = list(kind.end_ids(tokenizer)) or tokenizer.eos_token_id
    model.generation_config = GenerationConfig(eos_token_id=ends)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def bring(folder: Path, address: str) -> None:
    """All of it in a folder: `model/`, `tasks.json`, `traces/render_0.html` and `nnetnav.jsonl`."""
    chat_model(folder / "model")
    (folder / "tasks.json").write_text(json.dumps(tasks()), encoding="utf-8")
    (folder / "traces").mkdir()
    (folder / "traces" / "render_0.html").write_text(webarena_trace(address), encoding="utf-8")
    lines = "".join(json.dumps(row) + "\n" for row in nnetnav_rows(address))
    (folder / "nnetnav.jsonl").write_text(lines, encoding="utf-8")
