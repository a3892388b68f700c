"""Tokenizers and chat templates in the ways of real families, small enough to build in a test.

A family is what matters to a prompt layer: how text is cut into tokens, what its template writes, which ids end a
reply and how it thinks. The templates are written anew, after the habits of each family.
"""

# ruff: noqa: E501  (templates are read more easily unbroken)

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

CORPUS = [
    "OBJECTIVE: Open the cart and buy it. PREVIOUS ACTIONS: none URL: http://shop.localhost/ PAGE:",
    "REASON: what you see and what to do next ACTION: click [5] type [3] [red shoes] [1] stop [12,50 EUR]",
    "You operate a web browser to reach an objective. Answer YES or NO. link button textbox heading text",
    "url /cart = [1]-[4] + text 'Added to the cart' ~ [3] = 'red' same end # The cart opens.",
    "REASON: it is there and the mark is a page. Überraschung, naïve café, 東京, emoji 🙂, tabs\tand\nlines\n\n\n  and   spaces",
]


def byte_level(specials: list[str], plain: tuple[str, ...] = ()) -> Tokenizer:
    """BPE on bytes, in the way of GPT-2, Llama 3 and Qwen."""
    made = Tokenizer(models.BPE())
    pattern = Regex(r"\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+")
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(pattern, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    made.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(vocab_size=700, special_tokens=specials, initial_alphabet=alphabet, show_progress=False),
    )
    made.add_tokens([AddedToken(text, normalized=False) for text in plain])
    return made


def metaspace(specials: list[str], plain: tuple[str, ...] = (), *, scheme: str = "first") -> Tokenizer:
    """BPE with marks for spaces and bytes to fall back on, in the way of Llama 2, Mistral and Gemma."""
    made = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    made.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=900, special_tokens=["<unk>", *specials, *pieces], show_progress=False)
    )
    known = json.loads(made.to_str())  # bytes are pieces like others, no control tokens
    known["added_tokens"] = [token for token in known["added_tokens"] if token["content"] not in pieces]
    made = Tokenizer.from_str(json.dumps(known))
    made.add_tokens([AddedToken(text, normalized=False) for text in plain])
    return made


def unigram(specials: list[str], plain: tuple[str, ...] = ()) -> Tokenizer:
    """Unigram pieces with marks for spaces, in the way of SentencePiece."""
    made = Tokenizer(models.Unigram())
    made.normalizer = normalizers.NFKC()
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    made.decoder = decoders.Metaspace(prepend_scheme="always")
    made.train_from_iterator(
        CORPUS,
        trainers.UnigramTrainer(
            vocab_size=400,
            special_tokens=["<unk>", *specials],
            unk_token="<unk>",
            show_progress=False,
            initial_alphabet=[chr(code) for code in range(32, 127)] + ["\n"],
        ),
    )
    made.add_tokens([AddedToken(text, normalized=False) for text in plain])
    return made


def word_level(specials: list[str], plain: tuple[str, ...] = ()) -> Tokenizer:
    """Characters and words of a list; what is not in it is unknown."""
    made = Tokenizer(models.WordLevel(unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(r"\p{L}+|."), "isolated")
    made.decoder = decoders.Fuse()
    made.train_from_iterator(
        [*CORPUS, *map(chr, range(32, 127)), "\n"],
        trainers.WordLevelTrainer(special_tokens=["<unk>", *specials], show_progress=False),
    )
    made.add_tokens([AddedToken(text, normalized=False) for text in plain])
    return made


@dataclass(frozen=True)
class Family:
    """How one family does it. `ends` are what its generation_config lists, by name."""

    name: str
    cut: Callable[..., Tokenizer]
    specials: tuple[str, ...]
    template: str | None
    eos: str | None
    ends: tuple[str, ...] = ()
    plain: tuple[str, ...] = ()
    turn_end: str = ""
    """What the template writes behind the model's text: the last of it ends a reply."""
    lead: str = ""
    """What a prompt for an answer has more than one for a reply."""
    bos: str | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def tokenizer(self) -> Any:
        """A tokenizer of this family, with its template."""
        backend = self.cut(list(self.specials), self.plain, **self.options)
        unknown = "<unk>" if backend.token_to_id("<unk>") is not None else None
        made = PreTrainedTokenizerFast(
            tokenizer_object=backend,
            eos_token=self.eos,
            bos_token=self.bos,
            unk_token=unknown,
            clean_up_tokenization_spaces=False,
        )
        made.chat_template = self.template
        return made

    def end_ids(self, tokenizer: Any) -> tuple[int, ...]:
        """The ids that its generation_config lists."""
        return tuple(tokenizer.convert_tokens_to_ids(name) for name in self.ends)


def _im(thinking: str = "", *, trim: bool = False) -> str:
    content = "m.content | trim" if trim else "m.content"
    return (
        "{% for m in messages %}"
        "{% if m.role == 'assistant' and '</think>' in m.content %}{% set c = m.content.split('</think>')[-1].lstrip() %}"
        f"{{% else %}}{{% set c = {content} %}}{{% endif %}}"
        "<|im_start|>{{ m.role }}\n"
        f"{{% if m.role == 'assistant' and loop.last %}}{thinking}{{% endif %}}"
        "{{ c }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n"
        "{% if enable_thinking is defined and enable_thinking is false %}" + thinking + "{% endif %}{% endif %}"
    )


LLAMA3 = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{% set s = messages[0].content | trim %}"
    "{% set rest = messages[1:] %}{% else %}{% set s = '' %}{% set rest = messages %}{% endif %}"
    "<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n"
    "Today Date: {{ strftime_now('%d %b %Y') }}\n\n{{ s }}<|eot_id|>"
    "{% for m in rest %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
LLAMA4 = LLAMA3.replace("_id|>", "|>").replace("start_header|", "header_start|").replace("end_header|", "header_end|")
GEMMA = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% set role = 'model' if m.role == 'assistant' else m.role %}"
    "<start_of_turn>{{ role }}\n{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}[SYSTEM_PROMPT]{{ m.content }}[/SYSTEM_PROMPT]"
    "{% elif m.role == 'user' %}[INST]{{ m.content }}[/INST]{% else %}{{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
)
LLAMA2 = (
    "{% if messages[0].role == 'system' %}{% set s = '<<SYS>>\n' ~ messages[0].content ~ '\n<</SYS>>\n\n' %}"
    "{% set rest = messages[1:] %}{% else %}{% set s = '' %}{% set rest = messages %}{% endif %}"
    "{% for m in rest %}{% if m.role == 'user' %}{{ bos_token }}[INST] {{ (s if loop.first else '') ~ m.content | trim }} [/INST]"
    "{% else %} {{ m.content | trim }} {{ eos_token }}{% endif %}{% endfor %}"
)
PHI = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
GLM = (
    "[gMASK]<sop>{% for m in messages %}<|{{ m.role }}|>\n{% if m.role == 'assistant' %}<think></think>\n{% endif %}"
    "{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|assistant|>"
    "{% if enable_thinking is defined and not enable_thinking %}{{ '\n' }}<think></think>\n{% endif %}{% endif %}"
)
R1 = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}{% elif m.role == 'user' %}"
    "<｜User｜>{{ m.content }}{% else %}<｜Assistant｜>{{ m.content.split('</think>')[-1] }}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<｜Assistant｜><think>\n{% endif %}"
)
HARMONY = (
    "<|start|>system<|message|>You are ChatGPT.\nCurrent date: {{ strftime_now('%Y-%m-%d') }}\n\n"
    "Reasoning: {{ reasoning_effort | default('medium') }}\n\n# Valid channels: analysis, commentary, final.<|end|>"
    "{% for m in messages %}{% if m.role == 'system' %}<|start|>developer<|message|># Instructions\n\n{{ m.content }}<|end|>"
    "{% elif m.role == 'user' %}<|start|>user<|message|>{{ m.content }}<|end|>"
    "{% else %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}"
    "{% if loop.last and not add_generation_prompt %}<|return|>{% else %}<|end|>{% endif %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
SMOL3 = (
    "{% if messages[0].role == 'system' %}{% set s = messages[0].content %}{% set rest = messages[1:] %}"
    "{% else %}{% set s = '' %}{% set rest = messages %}{% endif %}"
    "<|im_start|>system\n## Metadata\nToday Date: {{ strftime_now('%d %B %Y') }}\nReasoning Mode: "
    "{{ '/think' if enable_thinking | default(true) else '/no_think' }}\n\n{{ s }}<|im_end|>\n"
    "{% for m in rest %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' %}{{ '<think>\n\n</think>\n' if not enable_thinking | default(true) else '' }}{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{{ '<think>\n\n</think>\n' if not enable_thinking | default(true) else '' }}{% endif %}"
)
LISTS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% for part in m.content %}{% if part.type == 'text' %}"
    "{{ part.text }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_IM = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
_CHANNELS = ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>", "<|call|>")
_HEADERS = ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
_HEADERS4 = ("<|begin_of_text|>", "<|end_of_text|>", "<|header_start|>", "<|header_end|>", "<|eot|>", "<|eom|>")

FAMILIES: tuple[Family, ...] = (
    Family(
        "llama-3",
        byte_level,
        _HEADERS,
        LLAMA3,
        "<|eot_id|>",
        ("<|end_of_text|>", "<|eot_id|>"),
        turn_end="<|eot_id|>",
        bos="<|begin_of_text|>",
    ),
    Family(
        "llama-4",
        byte_level,
        _HEADERS4,
        LLAMA4,
        "<|end_of_text|>",
        ("<|end_of_text|>", "<|eom|>", "<|eot|>"),
        turn_end="<|eot|>",
        bos="<|begin_of_text|>",
    ),
    Family("qwen-2.5", byte_level, _IM, _im(), "<|im_end|>", ("<|im_end|>", "<|endoftext|>"), turn_end="<|im_end|>"),
    Family(
        "qwen-3",
        byte_level,
        _IM,
        _im("<think>\n\n</think>\n\n"),
        "<|im_end|>",
        ("<|im_end|>", "<|endoftext|>"),
        ("<think>", "</think>"),
        "<|im_end|>",
    ),
    Family(
        "gemma",
        metaspace,
        ("<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"),
        GEMMA,
        "<eos>",
        ("<eos>", "<end_of_turn>"),
        ("\n\n", "\n\n\n", "<table>", "<h1>"),
        "<end_of_turn>",
        bos="<bos>",
        options={"scheme": "never"},
    ),
    Family(
        "mistral",
        byte_level,
        ("<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
        MISTRAL,
        "</s>",
        ("</s>",),
        turn_end="</s>",
        bos="<s>",
    ),
    Family("llama-2", metaspace, ("<s>", "</s>"), LLAMA2, "</s>", ("</s>",), turn_end=" </s>", bos="<s>"),
    Family("sentencepiece", unigram, ("<s>", "</s>"), LLAMA2, "</s>", turn_end=" </s>", bos="<s>"),
    Family(
        "phi",
        byte_level,
        ("<|endoftext|>", "<|end|>", *_ROLES),
        PHI,
        "<|endoftext|>",
        ("<|endoftext|>", "<|end|>"),
        turn_end="<|end|>",
    ),
    Family(
        "glm",
        byte_level,
        ("<|endoftext|>", "[gMASK]", "<sop>", *_ROLES, "<|observation|>"),
        GLM,
        "<|endoftext|>",
        ("<|endoftext|>", "<|user|>", "<|observation|>"),
        ("<think>", "</think>"),
        "<|user|>",
    ),
    Family("smollm-3", byte_level, _IM, SMOL3, "<|im_end|>", ("<|im_end|>",), ("<think>", "</think>"), "<|im_end|>"),
    Family(
        "deepseek-r1",
        byte_level,
        ("<｜begin｜>", "<｜end｜>", "<｜User｜>", "<｜Assistant｜>"),
        R1,
        "<｜end｜>",
        ("<｜end｜>",),
        ("<think>", "</think>"),
        "<｜end｜>",
        "\n</think>\n\n",
        "<｜begin｜>",
    ),
    Family(
        "gpt-oss",
        byte_level,
        ("<|endoftext|>", *_CHANNELS),
        HARMONY,
        "<|return|>",
        ("<|return|>", "<|endoftext|>", "<|call|>"),
        turn_end="<|return|>",
        lead="<|channel|>final<|message|>",
    ),
    Family("parts", byte_level, _IM, LISTS, "<|im_end|>", turn_end="<|im_end|>"),
    Family(
        "gpt-2", byte_level, ("<|endoftext|>",), None, "<|endoftext|>", ("<|endoftext|>",), turn_end="<|endoftext|>"
    ),
    Family("word-level", word_level, ("<eos>",), None, "<eos>", turn_end="<eos>"),
)
