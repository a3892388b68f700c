"""Chat templates of every family: exact ids, no control token out of text, replies that end, thoughts apart."""

from __future__ import annotations

from datetime import datetime
from functools import cache
from typing import Any

import pytest
from chat_families import FAMILIES, Family

from dynaweb.errors import ConfigError
from dynaweb.policy.template import TODAY, ChatTemplate


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Theirs is set to the day that ours always shows."""

    class Frozen(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Frozen:
            return cls(TODAY.year, TODAY.month, TODAY.day)

    monkeypatch.setattr("transformers.utils.chat_template_utils.datetime", Frozen)


NAMES = [family.name for family in FAMILIES]
SYSTEM, USER = "You operate a web browser.\nAnswer YES or NO.", "OBJECTIVE: Open the cart\nPAGE:\n[1] link 'Über 東京' "


def family(name: str) -> Family:
    return next(one for one in FAMILIES if one.name == name)


@cache
def tokenizer(name: str) -> Any:
    return family(name).tokenizer()


@cache
def template(name: str) -> ChatTemplate:
    return ChatTemplate(tokenizer(name), ends=family(name).end_ids(tokenizer(name)))


def theirs(name: str, *turns: tuple[str, str], begin: bool) -> tuple[int, ...]:
    """What transformers makes of turns, given as this family takes them."""
    messages: list[dict[str, Any]] = [{"role": role, "content": text} for role, text in turns]
    if name == "gemma":
        messages[1]["content"] = f"{SYSTEM}\n\n{messages[1]['content']}"
        messages = messages[1:]
    if name == "parts":
        messages = [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in messages]
    found = tokenizer(name).apply_chat_template(
        messages, add_generation_prompt=begin, return_dict=False, enable_thinking=False
    )
    return tuple(found)


WITH_TEMPLATE = [one.name for one in FAMILIES if one.template]


@pytest.mark.parametrize("name", WITH_TEMPLATE)
@pytest.mark.parametrize("user", [USER, "x", "\n\n leading", "a  b\tc\n\n\nd", "table <h1> 🙂"])
def test_prompts_are_the_ids_of_apply_chat_template(name: str, user: str) -> None:
    assert template(name).prompt(SYSTEM, user) == theirs(name, ("system", SYSTEM), ("user", user), begin=True)


@pytest.mark.parametrize("name", WITH_TEMPLATE)
def test_a_prompt_and_its_reply_are_the_ids_of_the_whole_dialogue(name: str) -> None:
    """Up to what ends the reply: a template may write more behind it."""
    if name == "deepseek-r1":
        pytest.skip("its template shows past replies without the thought that its prompts begin")
    reply = "REASON: it is there\nACTION: click [5]"
    ours = template(name).prompt(SYSTEM, USER) + template(name).reply(reply)
    whole = theirs(name, ("system", SYSTEM), ("user", USER), ("assistant", reply), begin=False)
    assert whole[: len(ours)] == ours or (name == "glm" and ours[:-1] == whole)


@pytest.mark.parametrize("name", NAMES)
def test_replies_end_as_the_family_ends_them(name: str) -> None:
    end = tokenizer(name).convert_tokens_to_ids(family(name).turn_end.strip())
    reply = template(name).reply("ACTION: click [5]")
    assert reply[-1] == end
    assert [i for i in reply if i in template(name).stop_ids] == [end]
    assert set(template(name).stop_ids) >= {*family(name).end_ids(tokenizer(name)), tokenizer(name).eos_token_id, end}


def test_the_end_of_a_channel_is_no_end_of_a_reply() -> None:
    assert tokenizer("gpt-oss").convert_tokens_to_ids("<|end|>") not in template("gpt-oss").stop_ids


@pytest.mark.parametrize("name", NAMES)
def test_replies_are_read_back(name: str) -> None:
    read = template(name).read(template(name).reply("REASON: it is there\nACTION: click [5]"))
    assert (read.text, read.thought, read.error) == ("REASON: it is there\nACTION: click [5]", "", "")


def plain_ids(name: str) -> set[int]:
    """Added tokens that are text like other text: line breaks and HTML tags."""
    return {tokenizer(name).convert_tokens_to_ids(text) for text in family(name).plain if "think" not in text}


@pytest.mark.parametrize("name", NAMES)
def test_no_text_becomes_a_control_token(name: str) -> None:
    """Every control token of every family, in a page, a goal and a reply."""
    marks = set(tokenizer(name).added_tokens_decoder) - {tokenizer(name).unk_token_id, *plain_ids(name)}
    for text in {mark for one in FAMILIES for mark in (*one.specials, "<think>", "</think>", "</s>", "<unk>")}:
        for around in (text, f"a {text} b", f"{text}{text}\n"):
            clean = template(name).prompt(SYSTEM, "a")
            hostile = template(name).prompt(SYSTEM, around)
            assert [i for i in hostile if i in marks] == [i for i in clean if i in marks], around
            reply = template(name).reply(around)
            assert [i for i in reply if i in marks] == [i for i in template(name).reply("a") if i in marks], around


@pytest.mark.parametrize("name", ["qwen-3", "smollm-3", "llama-3", "gpt-2", "mistral"])
def test_what_a_page_says_of_marks_is_there_as_text(name: str) -> None:
    prompt = template(name).prompt(SYSTEM, "the mark <|im_end|> and </think> stay")
    assert "the mark <|im_end|> and </think> stay" in tokenizer(name).decode(prompt)


def said(name: str, text: str) -> tuple[int, ...]:
    """Ids of a sampled reply, marks read as marks."""
    return tuple(tokenizer(name)(text, add_special_tokens=False).input_ids)


THINKING = ["qwen-3", "smollm-3", "glm"]


@pytest.mark.parametrize("name", THINKING)
@pytest.mark.parametrize(
    ("reply", "text", "thought"),
    [
        ("<think>\nmaybe ```click [1]```\n</think>\n\nACTION: click [5]", "ACTION: click [5]", "maybe ```click [1]```"),
        ("<think>\n\n</think>\n\nsame", "same", ""),
        ("</think>ACTION: click [5]", "ACTION: click [5]", ""),
        ("a</think>b<think>c</think>click [5]", "click [5]", "a</think>bc"),
        ("click [5]", "click [5]", ""),
    ],
)
def test_thoughts_are_apart_from_the_answer(name: str, reply: str, text: str, thought: str) -> None:
    read = template(name).read(said(name, reply))
    assert (read.text, read.error) == (text, "")
    assert thought.replace("</think>", "") in read.thought.replace("</think>", "")


@pytest.mark.parametrize("name", [*THINKING, "gpt-2", "deepseek-r1"])
@pytest.mark.parametrize("reply", ["<think>maybe I should just\nstop [12]", "x</think>click [1]<think>stop [12]"])
def test_a_thought_that_is_cut_leaves_no_answer(name: str, reply: str) -> None:
    read = template(name).read(said(name, reply))
    assert read.text == "" and "inside its thought" in read.error


def test_a_thought_that_the_prompt_began_is_one() -> None:
    read = template("deepseek-r1").read(said("deepseek-r1", "maybe I should just\nstop [12]"))
    assert read.text == "" and "inside its thought" in read.error
    read = template("deepseek-r1").read(said("deepseek-r1", "hm\nstop [12]\n</think>\n\nclick [5]"))
    assert (read.text, read.thought) == ("click [5]", "hm\nstop [12]")


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (
            "<|channel|>analysis<|message|>stop [12]<|end|><|start|>assistant<|channel|>final<|message|>click [5]",
            "click [5]",
        ),
        ("<|channel|>final<|message|>click [5]", "click [5]"),
        ("<|channel|>analysis<|message|>maybe\nstop [12]", ""),
        ("<|channel|>final<|message|>stop [1]<|end|><|start|>assistant<|channel|>analysis<|message|>or", ""),
        ("<|channel|>commentary to=functions.x <|constrain|>json<|message|>{}", ""),
    ],
)
def test_harmony_answers_are_in_the_final_channel(reply: str, text: str) -> None:
    read = template("gpt-oss").read(said("gpt-oss", reply))
    assert read.text == text and bool(read.error) == (not text)


@pytest.mark.parametrize("name", NAMES)
def test_answers_begin_where_no_thought_is_open(name: str) -> None:
    """Where P(YES) is read: the thought is closed, the final channel open."""
    ids = template(name).prompt(SYSTEM, USER, answer=True)
    text = tokenizer(name).decode(ids)
    assert text.rfind("<think>") <= text.rfind("</think>")
    assert text.endswith(family(name).lead)
    assert template(name).first_id("YES") != template(name).first_id("NO")


def test_the_date_does_not_come_from_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.utils.chat_template_utils.datetime", datetime)
    text = tokenizer("llama-3").decode(template("llama-3").prompt(SYSTEM, USER))
    assert "Today Date: 01 Jan 2025" in text


def test_arguments_reach_the_template() -> None:
    high = ChatTemplate(tokenizer("gpt-oss"), arguments={"reasoning_effort": "high"})
    assert "Reasoning: high" in tokenizer("gpt-oss").decode(high.prompt(SYSTEM, USER))
    thinking = ChatTemplate(tokenizer("qwen-3"), arguments={"enable_thinking": True})
    assert "<think>" not in tokenizer("qwen-3").decode(thinking.prompt(SYSTEM, USER))


@pytest.mark.parametrize(
    "source", ["{{ raise_exception('no turns') }}", "nothing", "{{ messages[0].content }}{{ 1 / 0 }}"]
)
def test_a_template_without_room_for_the_turns_is_refused(source: str) -> None:
    odd = family("qwen-2.5").tokenizer()
    odd.chat_template = source
    with pytest.raises(ConfigError, match="chat template"):
        ChatTemplate(odd)


def test_a_reply_that_cannot_end_is_refused() -> None:
    odd = family("gpt-2").tokenizer()
    odd.eos_token = None
    with pytest.raises(ConfigError, match="could not end"):
        ChatTemplate(odd)


class Sight:
    """A vision whose template writes `placeholder` for an image."""

    control = ""

    def __init__(self, placeholder: str) -> None:
        self.placeholder = placeholder
        self.template = (
            "{% for m in messages %}<|im_start|>{{ m.role }}\n{% for p in m.content %}{% if p.type == 'image' %}"
            + placeholder
            + "{% else %}{{ p.text }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
        )


@pytest.mark.parametrize("special", [True, False])
def test_a_page_that_writes_what_stands_for_an_image_shows_it_as_text(special: bool) -> None:
    """A token that is none of the special ones too: `<picture>` is a control token since images are written with it."""
    own = family("qwen-2.5").tokenizer()
    own.add_tokens(["<picture>"], special_tokens=special)
    sight: Any = Sight("<picture>")
    (number,) = own("<picture>", add_special_tokens=False).input_ids
    ids = ChatTemplate(own, vision=sight).prompt(SYSTEM, "Open <picture> <picture>.", images=("<picture><picture>",))
    assert ids.count(number) == 2
    assert "Open <picture> <picture>." in own.decode(ids)


@pytest.mark.parametrize("placeholder", ["<picture>", "Picture", "!"])
def test_what_stands_for_an_image_has_to_be_a_token_that_no_page_can_write(placeholder: str) -> None:
    sight: Any = Sight(placeholder)
    with pytest.raises(ConfigError, match=f"has no token '{placeholder}', which stands for an image") as error:
        ChatTemplate(family("qwen-2.5").tokenizer(), vision=sight)
    assert "\n" not in str(error.value)
