"""What WebRL's agents (arXiv 2411.02337) are shown and write on WebArena-Lite: the formats `html` and `webrl`.

They belong to the environment, not to the optimizer `webrl`: their data is recorded on WebArena's sites, and any
optimizer can train on it.

**The dialect `html`**: simplified HTML with element numbers.

    <html url="http://shop.localhost/" title="Shop">
    <a id="1">Home</a>
    <input id="2" type="text" title="Search" value="abc">
    <select id="3" title="Sort" value="Newest"><option>Newest</option><option>Price</option></select>
    <div id="4" role="tab" selected>Reviews</div>
    </html>

One line an element, indented by one space a level, closed on its own line; the name is the text, or `title` for tags
that hold none. A role without a tag of its own is a `div` with that role. Page text is escaped, so it can neither end
its tag nor begin a line.

**The grammar `webrl`** (the last call of the reply counts; lines before it are reasoning):

    do(action="Click", element="7")   do(action="Search", argument="text", element="7")   go_backward()
    exit(message="answer")

`Search` is `Type` and the Enter key. Beyond WebRL's own list: `Press` with any key, `Goto`, `New Tab`, `Close Tab`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from dynaweb.types import Action, ActionKind, Node, Observation, Tab
from dynaweb.web.actions.calls import Call, as_text, double, last_calls
from dynaweb.web.actions.rules import AIMED, Refused, element, resolve, tab_index
from dynaweb.web.observation_formats import Dialect, Grammar
from dynaweb.web.page.text import TRUNCATED
from dynaweb.web.quoting import quote

_TAGS = {
    "link": "a",
    "button": "button",
    "heading": "h1",
    "text": "p",
    "StaticText": "span",
    "list": "ul",
    "listitem": "li",
    "image": "img",
    "table": "table",
    "row": "tr",
    "cell": "td",
    "columnheader": "th",
    "navigation": "nav",
    "main": "main",
    "form": "form",
    "combobox": "select",
    "option": "option",
}
_ROLES = {tag: role for role, tag in _TAGS.items()}
_TYPES = {
    "textbox": "text",
    "searchbox": "search",
    "spinbutton": "number",
    "checkbox": "checkbox",
    "radio": "radio",
    "slider": "range",
}
_BY_TYPE = {kind: role for role, kind in _TYPES.items()}
_VOID = frozenset({"input", "img"})
_TITLED = frozenset({"input", "img", "select"})
_OWN = frozenset({"id", "type", "role", "title", "value"})

_UNSAFE = re.compile(r"[&<>\"\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_NAMED = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"}
_REFERENCE = re.compile(r"&(?:(amp|lt|gt|quot)|#([0-9]{1,7}));")
_PLAIN = {"amp": "&", "lt": "<", "gt": ">", "quot": '"'}
_OPEN = re.compile(r"( *)<([a-z][a-z0-9]*)")
_ATTRIBUTE = re.compile(r" ([A-Za-z_][\w-]*)(?:=\"([^\"<>]*)\")?")
_OPTION = re.compile(r"<option>([^<>]*)</option>")

_Attributes = list[tuple[str, str]]
_EXAMPLE = 'do(action="Click", element="7") or exit(message="answer")'
_FUNCTIONS = ("do", "exit", "go_backward", "go_forward")
_DO: dict[str, ActionKind] = {
    "Click": "click",
    "Hover": "hover",
    "Type": "type",
    "Search": "type",
    "Select Dropdown Option": "select",
    "Press": "press",
    "Press Enter": "press",
    "Scroll Down": "scroll",
    "Scroll Up": "scroll",
    "Goto": "goto",
    "Switch Tab": "tab_focus",
    "New Tab": "new_tab",
    "Close Tab": "close_tab",
    "Wait": "wait",
}
_BY_LOWER = {name.lower(): name for name in _DO}
_WITH_TEXT = frozenset({"type", "select", "goto"})
_ON_ELEMENT = frozenset({"click", "hover", "type", "select"})


def html_lines(observation: Observation) -> Iterator[str]:
    """The lines of a page."""
    title = [("title", observation.title)] if observation.title else []
    yield f"<html{_write([('url', observation.url), *title])}>"
    for tab in observation.tabs:
        current = [("current", "true")] if tab.current else []
        yield f"<tab{_write([('title', tab.title), ('url', tab.url), *current])}>"
    yield from map(_line, observation.nodes)
    if observation.truncated:
        yield TRUNCATED
    if observation.notice:
        yield f"<notice>{_escape(observation.notice)}</notice>"
    yield "</html>"


def parse_html(text: str, url: str = "") -> Observation:
    """Read `html` text back, exactly, its address included. Raises `ValueError` naming the line that is not valid."""
    lines = text.split("\n")
    nodes: list[Node] = []
    tabs: list[Tab] = []
    notice, truncated = "", False
    for number, line in enumerate(lines[1:], start=2):
        try:
            if line == TRUNCATED:
                truncated = True
            elif line.startswith("<tab "):
                tabs.append(_read_tab(line))
            elif line.startswith("<notice>"):
                notice = _unescape(line.removeprefix("<notice>").removesuffix("</notice>"))
            elif line != "</html>":
                nodes.append(_read_node(line))
        except ValueError as error:
            raise ValueError(f"line {number} of an html page, {line[:80]!r}: {error}") from None
    attributes = dict(_read_head(lines[0], "html"))
    return Observation(
        attributes.get("url", ""), tuple(nodes), attributes.get("title", ""), tuple(tabs), notice, truncated
    )


def _line(node: Node) -> str:
    tag = "input" if node.role in _TYPES else _TAGS.get(node.role, "div")
    attributes: _Attributes = [("id", str(node.id))]
    if tag == "input":
        attributes.append(("type", _TYPES[node.role]))
    elif tag == "div":
        attributes.append(("role", node.role))
    if tag in _TITLED and node.name:
        attributes.append(("title", node.name))
    if node.value is not None:
        attributes.append(("value", node.value))
    props = node.props
    inner = "" if tag in _TITLED else _escape(node.name)
    if tag == "select" and props and props[-1][0] == "options":
        inner = "".join(f"<option>{_escape(option)}</option>" for option in props[-1][1].split("|"))
        props = props[:-1]
    written = _write(attributes) + _write([(_public(key), text) for key, text in props])
    return f"{' ' * node.depth}<{tag}{written}>{inner}" + ("" if tag in _VOID else f"</{tag}>")


def _write(attributes: _Attributes) -> str:
    return "".join(_write_one(key, text) for key, text in attributes)


def _write_one(key: str, text: str) -> str:
    """A true property is one word; the node's own attributes are always written in full."""
    return f" {key}" if text == "true" and key not in _OWN | {"url"} else f' {key}="{_escape(text)}"'


def _public(key: str) -> str:
    return f"data-{key}" if key in _OWN or key == "url" or key.startswith("data-") else key


def _read_node(line: str) -> Node:
    head = _OPEN.match(line)
    if head is None:
        raise ValueError("expected a tag")
    tag = head[2]
    attributes, end = _read_attributes(line, head.end())
    inner = line[end:] if tag in _VOID else line[end:].removesuffix(f"</{tag}>")
    if tag not in _VOID and not line.endswith(f"</{tag}>"):
        raise ValueError(f"</{tag}> is missing at the end")
    own = {key: text for key, text in attributes if key in _OWN}
    props = [(key.removeprefix("data-"), text) for key, text in attributes if key not in _OWN]
    if tag == "select" and inner:
        props.append(("options", "|".join(_read_options(inner))))
    name = own.get("title", "") if tag in _TITLED else _unescape(inner)
    if not own.get("id", "").isdigit():
        raise ValueError("the element has no number")
    role = _role(tag, own)
    return Node(int(own["id"]), role, name, own.get("value"), tuple(props), depth=len(head[1]))


def _role(tag: str, own: dict[str, str]) -> str:
    role = _BY_TYPE.get(own.get("type", "")) if tag == "input" else own.get("role") if tag == "div" else _ROLES.get(tag)
    if role is None:
        raise ValueError(f"<{tag}> with these attributes is no element of this dialect")
    return role


def _read_options(inner: str) -> list[str]:
    options = _OPTION.findall(inner)
    if "".join(f"<option>{option}</option>" for option in options) != inner:
        raise ValueError("a select holds options only")
    return [_unescape(option) for option in options]


def _read_tab(line: str) -> Tab:
    attributes = dict(_read_head(line, "tab"))
    return Tab(attributes.get("title", ""), attributes.get("url", ""), "current" in attributes)


def _read_head(line: str, tag: str) -> _Attributes:
    if not line.startswith(f"<{tag}"):
        raise ValueError(f"expected <{tag} ...> as the first line, got {line[:80]!r}")
    return _read_attributes(line, len(tag) + 1)[0]


def _read_attributes(line: str, position: int) -> tuple[_Attributes, int]:
    attributes: _Attributes = []
    while not line.startswith(">", position):
        match = _ATTRIBUTE.match(line, position)
        if match is None:
            raise ValueError(f"expected an attribute or > at {line[position : position + 20]!r}")
        attributes.append((match[1], "true" if match[2] is None else _unescape(match[2])))
        position = match.end()
    return attributes, position + 1


def _escape(text: str) -> str:
    return _UNSAFE.sub(lambda match: _NAMED.get(match[0]) or f"&#{ord(match[0])};", text)


def _unescape(text: str) -> str:
    return _REFERENCE.sub(lambda match: _PLAIN[match[1]] if match[1] else chr(int(match[2])), text)


def parse_action(reply: str, observation: Observation) -> Action:
    """The action of the last call in a reply. Raises `Refused`."""
    call, _ = last_calls(reply, _FUNCTIONS, _FUNCTIONS, _EXAMPLE)
    try:
        action = _action(call)
    except ValueError as error:
        raise Refused(f"{call.name}: {error}; write for example {_EXAMPLE}") from None
    return resolve(action, observation)


def print_action(action: Action, with_id: bool) -> str:
    """The action as `parse_action` reads it; without `with_id` the target's role and name stand for its number."""
    plain = {"go_back": "go_backward()", "go_forward": "go_forward()"}
    if action.kind in plain:
        return plain[action.kind]
    if action.kind == "stop":
        return f"exit(message={double(action.text)})"
    name = _name(action)
    argument = str(action.index) if action.kind == "tab_focus" else action.text
    has_text = action.kind in _WITH_TEXT or name in ("Press", "Switch Tab")
    parts = [f'action="{name}"', *([f"argument={double(argument)}"] if has_text else [])]
    if action.target is not None:
        target = str(action.target) if with_id else f"{action.target_role} {quote(action.target_name)}"
        parts.append(f"element={double(target)}")
    return f"do({', '.join(parts)})"


def _name(action: Action) -> str:
    if action.kind == "type":
        return "Search" if action.enter else "Type"
    if action.kind == "scroll":
        return "Scroll Up" if action.text == "up" else "Scroll Down"
    if action.kind == "press":
        return "Press Enter" if action.text == "Enter" else "Press"
    return next(name for name, kind in _DO.items() if kind == action.kind)


def _action(call: Call) -> Action:
    if call.name == "exit":
        message = call.bind(("message",)).get("message")
        return Action("stop", text="" if message is None else as_text(message))
    if call.name != "do":
        call.bind(())
        return Action("go_back" if call.name == "go_backward" else "go_forward")
    bound = call.bind(("action", "argument", "element"))
    text = as_text(bound.get("action", ""))
    name = _BY_LOWER.get(text.lower())
    if name is None:
        raise ValueError(f"there is no action {quote(text[:40])}; actions are {', '.join(_DO)}")
    argument, target = bound.get("argument"), bound.get("element")
    number = None if target is None else element(as_text(target))
    return _do(name, _DO[name], None if argument is None else as_text(argument), number)


def _do(name: str, kind: ActionKind, argument: str | None, number: int | None) -> Action:
    if kind in _ON_ELEMENT and number is None:
        raise ValueError(f"{name} needs an element")
    if argument is None and (kind in _WITH_TEXT or name in ("Press", "Switch Tab")):
        raise ValueError(f"{name} needs an argument")
    text = {"Scroll Up": "up", "Scroll Down": "down", "Press Enter": "Enter"}.get(name, argument or "")
    if kind == "tab_focus":
        return Action(kind, index=tab_index(text))
    keeps = kind in _ON_ELEMENT or kind in AIMED
    has_text = kind in _WITH_TEXT or kind in AIMED
    return Action(kind, number if keeps else None, text if has_text else "", enter=name == "Search")


class Html:
    """The format `html`."""

    dialect = Dialect(html_lines, parse_html)


class Webrl:
    """The format `webrl`."""

    grammar = Grammar(parse_action, print_action)
