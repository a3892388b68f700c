"""HTML without a browser: a parsed document, the state of its controls, and its raw accessibility tree.

`StaticPage.tree()` gives the raw tree that `dynaweb.web.page.tree` reads from Chromium, for plain server-rendered
HTML: no scripts, and style sheets that neither hide elements nor turn inline elements into blocks. Views are made of
it by `dynaweb.web.page.view`, so both drivers share every rule above the tree. Names follow "HTML Accessibility API
Mappings" and "Accessible Name and Description Computation" of the W3C where Chromium does, and Chromium where it does
not.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from lxml import etree

from dynaweb.types import Node
from dynaweb.web.actions.rules import TEXTBOXES
from dynaweb.web.page.options import option_labels
from dynaweb.web.page.tree import link_address
from dynaweb.web.page.view import NAME_LIMIT
from dynaweb.web.static.addresses import resolve_url

# lxml has no type stubs; an element is what lxml gives.
Element = Any

INPUT_ROLES = {
    **dict.fromkeys(("submit", "button", "reset", "image", "file"), "button"),
    **{"checkbox": "checkbox", "radio": "radio", "search": "searchbox", "number": "spinbutton", "range": "slider"},
}
"""Roles of `<input>` by type; every other type is a textbox."""
CONTROLS = frozenset({"input", "select", "textarea", "button"})

_ROLES = {
    **{f"h{level}": "heading" for level in range(1, 7)},
    **{"p": "paragraph", "ul": "list", "ol": "list", "li": "listitem", "dl": "DescriptionList", "dt": "term"},
    **{"dd": "definition", "table": "table", "tr": "row", "th": "columnheader", "td": "cell", "nav": "navigation"},
    **{"main": "main", "aside": "complementary", "header": "banner", "footer": "contentinfo", "form": "form"},
    **{"article": "article", "button": "button", "textarea": "textbox", "select": "combobox", "label": "LabelText"},
    **{
        "img": "image",
        "br": "LineBreak",
        "summary": "DisclosureTriangle",
        "dialog": "dialog",
        "option": "option",
        "output": "status",
    },
    **{"strong": "strong", "em": "emphasis", "time": "time", "code": "code", "mark": "mark", "sub": "subscript"},
    **{"sup": "superscript", "ins": "insertion", "del": "deletion", "s": "deletion", "abbr": "Abbr"},
}
# Chromium leaves these out of its tree unless an attribute makes them interesting.
_INLINE = frozenset(
    {"span", "b", "i", "small", "u", "a", "font", "cite", "q", "kbd", "samp", "var", "bdi", "bdo", "label"}
)
_INLINE_ROLES = frozenset(
    {"strong", "emphasis", "time", "code", "mark", "subscript", "superscript", "insertion", "deletion", "Abbr", "image"}
)
_SKIPPED = frozenset({"script", "style", "template", "noscript", "datalist", "title", "meta", "link", "svg"})
_LEAVES = frozenset({"input", "select", "textarea"})
_FROM_CONTENT = frozenset({"link", "button", "heading", "option", "checkbox", "radio", "DisclosureTriangle", "tab"})
LONGEST_NAME = 2_000
"""Characters of a name that are put together: a text may name any number of controls."""
_NUMBER = re.compile(r"-?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_PARSER = etree.HTMLParser(encoding="utf-8", remove_pis=True)


@dataclass(slots=True)
class StaticPage:
    """One loaded document. Typed, ticked and selected state lives here, beside the unchanged HTML."""

    url: str
    root: Element
    elements: list[Element] = field(default_factory=list)
    """Elements of the last `tree()`; `ref` of a node is an index into it."""
    values: dict[Element, str] = field(default_factory=dict)
    checks: dict[Element, bool] = field(default_factory=dict)
    choices: dict[Element, Element] = field(default_factory=dict)
    labels: dict[Element, list[Element]] = field(default_factory=dict)
    ids: dict[str, Element] = field(default_factory=dict)
    controls: list[Element] = field(default_factory=list)
    said: dict[Element, tuple[str, dict[Element, tuple[int, int]]]] = field(default_factory=dict)
    """The text in each element that names others, and where in it its parts are, while a tree is made."""

    def tree(self) -> list[Node]:
        """The raw accessibility tree in page order, ids 0."""
        self.elements.clear()
        self.said.clear()
        nodes: list[Node] = []
        opened: list[bool] = []
        depth = 0
        walk = etree.iterwalk(self.root, events=("start", "end", "comment"))
        for event, element in walk:
            if event == "start":
                role = None if _is_hidden(element) else role_of(element)
                opened.append(bool(role))
                if role:
                    nodes.append(self._node(element, role, depth))
                    depth += 1
                if role is None or element.tag in _LEAVES:
                    nodes.extend(self._option_nodes(element, depth))
                    walk.skip_subtree()
                elif element.text and not element.text.isspace():
                    nodes.append(Node(0, "StaticText", element.text, depth=depth))
                continue
            if event == "end":
                depth -= opened.pop()
            if element.tail and not element.tail.isspace() and element is not self.root:
                nodes.append(Node(0, "StaticText", element.tail, depth=depth))
        self.said.clear()
        return nodes

    def html(self) -> str:
        """The document as HTML text."""
        return str(etree.tostring(self.root, method="html", encoding="unicode"))

    def value(self, control: Element) -> str:
        """The content of a text control, or the label of the selected option."""
        if control.tag == "select":
            option = self.choice(control)
            return "" if option is None else labelled_options(control)[option]
        if control in self.values:
            return self.values[control]
        if control.tag == "textarea":
            return "".join(control.itertext()).replace("\r\n", "\n").removeprefix("\n")
        text: str = control.get("value", "")
        return text if input_type(control) != "number" or is_number(text) else ""

    def checked(self, control: Element) -> bool:
        """Whether a checkbox or radio button is on."""
        return self.checks.get(control, control.get("checked") is not None)

    def choice(self, select: Element) -> Element | None:
        """The selected option: the chosen one, the last marked one, or the first that is enabled."""
        if select in self.choices:
            return self.choices[select]
        options = list(select.iter("option"))
        marked = [option for option in options if option.get("selected") is not None]
        enabled = [option for option in options if option.get("disabled") is None]
        return marked[-1] if marked else next(iter(enabled), None)

    def form_of(self, control: Element) -> Element | None:
        """The form that owns a control: its `form` attribute, else the form around it."""
        if control.get("form") is not None:
            return self.ids.get(control.get("form"))
        return next(control.iterancestors("form"), None)

    def name(self, element: Element, role: str) -> str:
        """The accessible name, white space collapsed; '' when there is none."""
        labels = (self.ids[key] for key in element.get("aria-labelledby", "").split() if key in self.ids)
        said, length = [], 0
        for label in labels:
            said.append(self._said(label, element))
            length += len(said[-1]) + 1
            if length > LONGEST_NAME:
                break
        return _squeeze(" ".join(said)) if said else self._own_name(element, role, self._native_name(element, role))

    def content(self, element: Element) -> str:
        """The text in an element as a name reads it."""
        return _squeeze("".join(piece for _, piece in self._pieces(element)))

    def _own_name(self, element: Element, role: str, native: str) -> str:
        """The name without what other elements say."""
        if _squeeze(element.get("aria-label", "")):
            return _squeeze(element.get("aria-label"))
        return native or _squeeze(element.get("title", "")) or _squeeze(element.get("placeholder", ""))

    def _said(self, label: Element, own: Element) -> str:
        """The text in a label; `own` is the control that is being named (it is left out)."""
        if label not in self.said:
            text, at, length = [], {}, 0
            for part, piece in self._pieces(label):
                if part is not None:
                    at[part] = (length, length + len(piece))
                text.append(piece)
                length += len(piece)
            self.said[label] = "".join(text), at
        whole, places = self.said[label]
        start, end = places.get(own, (0, 0))
        return _squeeze(whole[: min(start, LONGEST_NAME)] + whole[end : end + LONGEST_NAME])[:LONGEST_NAME]

    def _pieces(self, element: Element) -> Iterator[tuple[Element | None, str]]:
        """The texts in an element, each with the element that it stands for, if any; of white space no more than one
        in a row."""
        if not len(element):
            yield None, element.text or ""
            return
        space = False
        for part, piece in self._all_pieces(element):
            if piece and not (space and piece.isspace()):
                space = piece.isspace()
                yield part, piece

    def _all_pieces(self, element: Element) -> Iterator[tuple[Element | None, str]]:
        walk = etree.iterwalk(element, events=("start", "end", "comment"))
        for event, part in walk:
            if event == "start":
                yield (part if part is not element else None), self._content_start(part, element)
                if part is not element and (_is_leaf(part) or _is_hidden(part)):
                    walk.skip_subtree()
                continue
            if event == "end" and _is_block(part):
                yield None, " "
            if part is not element:
                yield None, part.tail or ""

    def _content_start(self, part: Element, root: Element) -> str:
        if part is root:
            return part.text or ""
        if part.tag in _SKIPPED or _is_hidden(part):
            return ""
        if part.tag == "img" or part.get("aria-label"):
            return str(part.get("aria-label") or part.get("alt", ""))
        if part.tag in _LEAVES:
            role = role_of(part)
            if role == "button":
                # What others say of it leads on from label to label, for ever or to more text than there is.
                return self._own_name(part, role, _squeeze(_button_text(part)))
            return f" {self.value(part)} " if role in TEXTBOXES or role == "combobox" else ""
        return f"{' ' if _is_block(part) else ''}{part.text or ''}"

    def _native_name(self, element: Element, role: str) -> str:
        labels = self.labels.get(element)
        if labels:
            name = _squeeze(" ".join(self._said(label, element) for label in labels))
            if name:
                return name
        if element.tag == "input":
            return _squeeze(_button_text(element)) if role == "button" else ""
        if element.tag == "img":
            return _squeeze(element.get("alt", ""))
        return self.content(element) if role in _FROM_CONTENT else ""

    def _node(self, element: Element, role: str, depth: int) -> Node:
        ref = str(len(self.elements))
        self.elements.append(element)
        named = role in _FROM_CONTENT or element.tag in CONTROLS or role == "dialog" or role == "image"
        value = self._displayed_value(element, role)
        name = self.name(element, role) if named else ""
        href = element.get("href") if role == "link" else None
        address = link_address(resolve_url(self.url, href)) if href is not None else ""
        return Node(0, role, name, value, self._props(element, role), depth, ref, address)

    def _displayed_value(self, element: Element, role: str) -> str | None:
        if role not in TEXTBOXES and role != "combobox":
            return None
        text = self.value(element) if element.tag in _LEAVES else ""
        if input_type(element) == "password":
            text = "•" * len(text)
        return (_as_number(text) if input_type(element) == "number" else text) or None

    def _props(self, element: Element, role: str) -> tuple[tuple[str, str], ...]:
        if element.tag not in CONTROLS:
            return ()
        props = []
        if role in ("checkbox", "radio") and self.checked(element):
            props.append(("checked", "true"))
        if is_disabled(element):
            props.append(("disabled", "true"))
        if role in TEXTBOXES and element.get("required") is not None:
            props.append(("required", "true"))
        return tuple(props)

    def _option_nodes(self, element: Element, depth: int) -> Iterator[Node]:
        """A native select's options as Chromium shows them: in a popup, named, without text."""
        if element.tag != "select" or _is_hidden(element):
            return
        yield Node(0, "MenuListPopup", depth=depth)
        group, chosen = None, self.choice(element)
        for option in element.iter("option"):
            parent = option.getparent()
            if parent is not group and parent is not None and parent.tag == "optgroup":
                group = parent
                yield Node(0, "group", _squeeze(group.get("label") or ""), depth=depth + 1)
            props = (("selected", "true"),) if option is chosen else ()
            yield Node(0, "option", option_label(option), None, props, depth + (2 if parent is group else 1))


def load(url: str, source: bytes) -> StaticPage:
    """Parse the UTF-8 bytes of an HTML document."""
    page = StaticPage(url, _parse(source))
    own_labels: list[Element] = []
    for element in page.root.iter(etree.Element):
        if element.get("id"):
            page.ids.setdefault(element.get("id"), element)
        if element.tag in CONTROLS:
            page.controls.append(element)
        elif element.tag == "label":
            own_labels.append(element)
    for label in own_labels:
        control = _labelled(page, label)
        if control is not None:
            page.labels.setdefault(control, []).append(label)
    return page


def _parse(source: bytes) -> Element:
    try:
        root = etree.fromstring(source, _PARSER)
    except etree.XMLSyntaxError:
        root = None
    # Nothing is left of empty documents and of those that hold comments only.
    return etree.fromstring(b"<html><body></body></html>", _PARSER) if root is None else root


def role_of(element: Element) -> str | None:
    """Chromium's role; '' for what the tree looks through, None for what is not shown at all."""
    tag = element.tag
    if tag in _SKIPPED:
        return None
    roles = element.get("role", "").split()
    if roles and roles[0] not in ("none", "presentation"):
        return str(roles[0])
    if tag == "input":
        kind = input_type(element)
        return None if kind == "hidden" else INPUT_ROLES.get(kind, "textbox")
    if tag == "a" and element.get("href") is not None:
        return "link"
    if tag in _ROLES:
        return _ROLES[tag]
    marked = element.get("id") or element.get("title") or element.get("lang") or element.get("aria-label")
    return "generic" if tag not in _INLINE or marked else ""


def input_type(element: Element) -> str:
    """The type of an `<input>`, `text` when it has none; '' for other elements."""
    return str(element.get("type") or "text").lower() if element.tag == "input" else ""


def is_disabled(element: Element) -> bool:
    """Whether a control is disabled, by itself or by the fieldset around it."""
    if element.tag not in CONTROLS:
        return False
    fieldsets = element.iterancestors("fieldset")
    return element.get("disabled") is not None or any(field.get("disabled") is not None for field in fieldsets)


def is_number(text: str) -> bool:
    """Whether a number input takes the text."""
    return _NUMBER.fullmatch(text) is not None and abs(float(text)) < 3.4e38


def _as_number(text: str) -> str:
    """A number as Chromium's tree gives it: in single precision, `1.50` as `1.5`."""
    if not text:
        return ""
    number: float = struct.unpack("f", struct.pack("f", float(text)))[0]
    return str(int(number)) if number.is_integer() else f"{number:g}"


def option_label(option: Element) -> str:
    """What a list shows for an option."""
    return _squeeze(option.get("label") or "".join(option.itertext()))


def labelled_options(select: Element) -> dict[Element, str]:
    """The options of a list with the labels by which they are chosen."""
    options = list(select.iter("option"))
    parents = (option.getparent() for option in options)
    groups = ("" if parent is None or parent.tag != "optgroup" else parent.get("label") or "" for parent in parents)
    labels = option_labels(zip(groups, map(option_label, options), strict=True), NAME_LIMIT)
    return dict(zip(options, labels, strict=True))


def option_value(option: Element) -> str:
    """What a form sends for an option."""
    value = option.get("value")
    return _squeeze("".join(option.itertext())) if value is None else str(value)


def _labelled(page: StaticPage, label: Element) -> Element | None:
    """The control that a label names."""
    if label.get("for") is not None:
        target = page.ids.get(label.get("for"))
        return target if target is not None and target.tag in CONTROLS else None
    return next((part for part in label.iter(*CONTROLS) if input_type(part) != "hidden"), None)


def _button_text(element: Element) -> str:
    kind = input_type(element)
    if kind == "image":
        return str(element.get("alt") or element.get("title") or "Submit")
    if kind == "file":
        return "Choose File"
    value = element.get("value")
    return str(value) if value is not None else {"submit": "Submit", "reset": "Reset"}.get(kind, "")


def _is_hidden(element: Element) -> bool:
    style = element.get("style", "").replace(" ", "")
    gone = "display:none" in style or "visibility:hidden" in style
    return gone or element.get("hidden") is not None or element.get("aria-hidden") == "true"


def _is_leaf(element: Element) -> bool:
    return element.tag in _LEAVES or element.tag in _SKIPPED or bool(element.get("aria-label"))


def _is_block(element: Element) -> bool:
    role = _ROLES.get(element.tag, "")
    return not (element.tag in _INLINE or element.tag in CONTROLS or role in _INLINE_ROLES)


def _squeeze(text: str) -> str:
    return " ".join(text.split())
