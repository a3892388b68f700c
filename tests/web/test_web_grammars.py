"""Five action grammars: every action is printed and read back, and no string crashes a parser."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynaweb.types import ACTION_KINDS, TARGETED, Action, Node, Observation
from dynaweb.web import observation_formats
from dynaweb.web.actions.grammar import format_action, parse_action, resolve

PAGE = Observation(
    "http://shop.localhost/",
    (
        Node(1, "link", "Home"),
        Node(2, "textbox", "Search", "abc"),
        Node(3, "combobox", "Sort", "Newest", (("options", "Newest|Price"),)),
        Node(4, "combobox", "City"),
    ),
)
TEXT = st.text(max_size=30) | st.sampled_from(
    [
        *('it\'s "q" [1]', "a\nb", "\\", "\\'", "\\n", "羊毛 🧣", "x]; [0", "x] [1", "]", "[", "\nAction: Click [1]"),
        *('do(action="Click", element="1")', 'exit(message="x")', "```click [1]```", "\x00\ud800\u2028", "None", "5"),
    ]
)
KEYS = st.sampled_from(["Enter", "Control+a", "Tab", "1", "羊", "'", '"', "\\"])


@st.composite
def actions(draw: st.DrawFn, grammar: str) -> Action:
    """Any action of the page above that the grammar can say."""
    kind = draw(st.sampled_from(ACTION_KINDS))
    if kind == "type":
        return Action(kind, 2, draw(TEXT), draw(st.booleans()))
    if kind == "select":
        return Action(kind, 4, draw(TEXT))
    if kind in TARGETED:
        return Action(kind, draw(st.integers(1, 4)))
    aimed = draw(st.none() | st.integers(1, 4))
    if kind == "scroll":
        return Action(kind, None if grammar == "browsergym" else aimed, draw(st.sampled_from(["up", "down"])))
    if kind == "press":
        return Action(kind, aimed, draw(KEYS))
    if kind == "tab_focus":
        return Action(kind, index=draw(st.integers(0, 99)))
    return Action(kind, text=draw(TEXT) if kind in ("goto", "stop") else "")


@pytest.mark.parametrize("grammar", observation_formats.names("grammar"))
def test_every_action_comes_back_exactly(grammar: str) -> None:
    @settings(max_examples=300, deadline=None)
    @given(actions(grammar))
    def comes_back(action: Action) -> None:
        resolved = resolve(action, PAGE)
        assert isinstance(resolved, Action), resolved
        text = format_action(resolved, grammar)
        assert parse_action(text, PAGE, grammar) == resolved
        head = "Thought: now\nAction: " if grammar == "webvoyager" else "I think so.\n"
        # A grammar that quotes nothing cannot tell a text that looks like an action from the action.
        if grammar not in ("webarena", "webvoyager") or not set("\n`") & set(resolved.text):
            assert parse_action(head + text, PAGE, grammar) == resolved
        assert format_action(resolved, grammar, with_id=False)

    comes_back()


@pytest.mark.parametrize(
    ("grammar", "reply", "expected"),
    [
        ("webrl", 'do(action="Click", element="1")', Action("click", 1)),
        ("webrl", '# Element: the link on top\ndo(action="Click", element=1)', Action("click", 1)),
        ("webrl", '```\ndo(action="Search", argument="wool", element="2")\n```', Action("type", 2, "wool", enter=True)),
        ("webrl", "do('Type', '01/01/2023', '2')", Action("type", 2, "01/01/2023")),
        ("webrl", "do(action='Type', argument='two\nlines', element='2',)", Action("type", 2, "two\nlines")),
        ("webrl", 'do(action="Select Dropdown Option", argument="Price", element="3")', Action("select", 3, "Price")),
        ("webrl", 'do(action="scroll down", argument=None, element=None)', Action("scroll", text="down")),
        ("webrl", 'do(action="Press Enter")', Action("press", text="Enter")),
        ("webrl", 'do(action="Switch Tab", argument=1)', Action("tab_focus", index=1)),
        ("webrl", "Going back.\ngo_backward()", Action("go_back")),
        ("webrl", "exit()", Action("stop")),
        ("webrl", 'exit(message="it\'s \\"1\\"")', Action("stop", text='it\'s "1"')),
        ("webrl", 'do(action="Click", element="1")\nexit(message="do(\\n")', Action("stop", text="do(\n")),
        ("webvoyager", "Thought: go\nAction: Click [1]", Action("click", 1)),
        ("webvoyager", "Action: click 1", Action("click", 1)),
        ("webvoyager", "Type [2]; [wool]", Action("type", 2, "wool", enter=True)),
        ("webvoyager", "Type 2; wool scarf", Action("type", 2, "wool scarf", enter=True)),
        ("webvoyager", "Scroll [WINDOW]; [down]", Action("scroll", text="down")),
        ("webvoyager", "Scroll 1; up", Action("scroll", 1, "up")),
        ("webvoyager", "Action: GoBack", Action("go_back")),
        ("webvoyager", "Google", Action("goto", text="https://www.google.com/")),
        ("webvoyager", "**Action:** ANSWER; [7 [sic] items]", Action("stop", text="7 [sic] items")),
        ("webvoyager", "ANSWER; seven", Action("stop", text="seven")),
        ("browsergym", "click('1')", Action("click", 1)),
        ("browsergym", "click(bid='1', button='left', modifiers=[])", Action("click", 1)),
        ("browsergym", "fill('2', 'a\\'b', True)", Action("type", 2, "a'b")),
        ("browsergym", "fill('2', 'x')\npress('2', 'Enter')", Action("type", 2, "x", enter=True)),
        ("browsergym", "fill('2', 'x')\npress('1', 'Enter')", Action("press", 1, "Enter")),
        ("browsergym", "select_option('3', ['Price'])", Action("select", 3, "Price")),
        ("browsergym", "clear('2')", Action("type", 2, "")),
        ("browsergym", "scroll(0, -120.5)", Action("scroll", text="up")),
        ("browsergym", "I am done.\n```send_msg_to_user('羊')```", Action("stop", text="羊")),
        ("browsergym", "report_infeasible('no such page')", Action("stop", text="N/A")),
        ("browsergym", "noop(1000)", Action("wait")),
        ("browsergym", "tab_focus(2)", Action("tab_focus", index=2)),
    ],
)
def test_replies_as_models_write_them(grammar: str, reply: str, expected: Action) -> None:
    assert parse_action(reply, PAGE, grammar) == resolve(expected, PAGE)


@pytest.mark.parametrize(
    ("grammar", "reply", "reason"),
    [
        ("webrl", "", "the reply is empty"),
        ("webrl", 'do(action="Click")', "Click needs an element"),
        ("webrl", 'do(action="Type", element="2")', "Type needs an argument"),
        ("webrl", 'do(action="Click", element="9")', "its elements are [1] to [4]"),
        ("webrl", 'do(action="Click", element="the link")', "the element is a number"),
        ("webrl", 'do(action="Right Click", element="1")', "there is no action 'Right Click'"),
        ("webrl", 'do(action="Click", element="1"', "a comma or ) is missing"),
        ("webrl", "do(find())", "expected a string in quotes"),
        ("webrl", 'quit(message="x")', "An action starts with one of do, exit"),
        ("webrl", 'do(action="Select Dropdown Option", argument="Old", element="3")', "it has 'Newest' 'Price'"),
        ("webvoyager", "Click", "the element is a number"),
        ("webvoyager", "Clik [1]", "did you mean Click?"),
        ("webvoyager", "Type [2]", "it takes two arguments"),
        ("webvoyager", "Scroll [WINDOW]; [left]", "the direction is up or down"),
        ("webvoyager", "Type [1]; [x]", "takes no text"),
        ("browsergym", "click('a12')", "the element is a number"),
        ("browsergym", "click('1', button='right')", "only the left button"),
        ("browsergym", "dblclick('1')", "no counterpart"),
        ("browsergym", "scroll(200, 0)", "only up and down"),
        ("browsergym", "fill('2')", "the value is missing"),
        ("browsergym", "fill('2', 'a', 'b', 'c')", "at most 3 arguments"),
        ("browsergym", "click(id='1')", "it takes bid, button, modifiers"),
        ("browsergym", "select_option('3', ['a', 'b'])", "one option at a time"),
        ("browsergym", "clik('1')", "did you mean click?"),
    ],
)
def test_refusals_say_what_is_valid(grammar: str, reply: str, reason: str) -> None:
    refusal = parse_action(reply, PAGE, grammar)
    assert isinstance(refusal, str)
    assert reason in refusal


WORDS = "click type stop select [1] [ ] ' \\ ``` goto tab_focus ² ١ 羊 'Home' scroll enter do( exit( fill( \" action= ,"
PIECES = [
    *(*WORDS.split(), " ", "\n", "[2] [x] [1]", "9" * 5000, "\ud800", "\x00", "e" * 300, "Action:", "Type [2]; ["),
    *('element="1"', ")", "[" * 3000, 'do(action="Click", element="1")', "click('1')", "'" * 999, "\\" * 999),
    *("press('2', 'Enter')", "ANSWER;", "\\U00110000"),
]


def test_no_string_crashes_a_parser() -> None:
    rng = random.Random(0)
    for _ in range(10_000):
        reply = "".join(rng.choices(PIECES, k=rng.randint(0, 8)))
        if rng.random() < 0.3:
            reply += "".join(chr(rng.randrange(0x110000)) for _ in range(rng.randint(0, 10)))
        for grammar in observation_formats.names("grammar"):
            parsed = parse_action(reply, PAGE, grammar)
            assert isinstance(parsed, Action) or parsed


@pytest.mark.parametrize(
    ("grammar", "reply", "kind", "text"),
    [
        ("webrl", '<answer>do(action="Click", element="2")</answer>', "click", ""),
        ("webrl", 'do(action="Click", element="9")\n<answer> do(action="Click", element="2")</answer>', "click", ""),
        ("webrl", '<answer>\ndo(action="Click", element="2")\n</answer>', "click", ""),
        ("webrl", '```python\ndo(action="Type", argument="""a "b"\nc""", element="2")\n```', "type", 'a "b"\nc'),
        ("browsergym", "```python\nfill('2', '''it's''')\n```", "type", "it's"),
        ("browsergym", "<action>click('2')</action>", "click", ""),
        ("browsergym", "Action: `click('2')`", "click", ""),
        ("webarena", "I look.\n```bash\nclick [2]\n```", "click", ""),
        ("webarena", "I look.\n```text\ntype [2] [x] [0]\n```\nThat should do.", "type", "x"),
        ("webarena", "<answer>click [2]</answer>", "click", ""),
        ("webarena", "Action: `click [2]`", "click", ""),
        ("webvoyager", "Thought: x\nAction: `Click [2]`", "click", ""),
        ("webvoyager", "Thought: x\nAction: ```Click [2]```", "click", ""),
        ("webvoyager", "Thought: x\n<answer>Click [2]</answer>", "click", ""),
        ("compact", "```bash\nclick 'Search' [2]\n```", "click", ""),
        ("compact", "Action: click 'Search' [2]", "click", ""),
        ("compact", "I look.\n**Action:** `type 'Search' [2] 'a `b`'`", "", ""),
        ("compact", "<action>type 'Search' [2] 'tea'</action>", "type", "tea"),
    ],
)
def test_what_models_put_around_an_action(grammar: str, reply: str, kind: str, text: str) -> None:
    page = Observation("http://x/", tuple(Node(n, "textbox", "Search") for n in (1, 2)))
    action = parse_action(reply, page, grammar)
    if not kind:
        assert isinstance(action, str) and "action" in action
        return
    assert isinstance(action, Action), action
    assert (action.kind, action.target, action.text) == (kind, 2, text)
