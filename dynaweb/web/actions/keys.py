"""Names of keys as people write them, in the names that browsers use."""

from __future__ import annotations

import re

_SPELLINGS = {
    "Enter": "return newline",
    "Escape": "esc",
    "Space": "spacebar",
    "Delete": "del",
    "Insert": "ins",
    "Backspace": "bksp backsp bs",
    "Tab": "tabulator",
    "ArrowUp": "up uparrow",
    "ArrowDown": "down downarrow",
    "ArrowLeft": "left leftarrow",
    "ArrowRight": "right rightarrow",
    "PageUp": "pgup prior",
    "PageDown": "pgdn pgdown next",
    "Home": "pos1",
    "End": "",
    "CapsLock": "caps",
    "ContextMenu": "menu apps",
    "Control": "ctrl ctl strg",
    # The key of shortcuts, whatever it is where the browser runs.
    "ControlOrMeta": "cmd command mod",
    "Meta": "win windows super",
    "Alt": "option opt",
    "Shift": "",
    **{f"F{number}": "" for number in range(1, 13)},
}
_NAMES = {
    **{name.lower(): name for name in _SPELLINGS},
    **{spelling: name for name, spellings in _SPELLINGS.items() for spelling in spellings.split()},
    **{"plus": "+", "minus": "-", "comma": ",", "period": ".", "dot": ".", "slash": "/"},
}
_MODIFIER = re.compile(
    r"(control|ctrl|ctl|strg|controlormeta|command|cmd|mod|meta|windows|win|super|alt|option|opt|shift)\s*[-+\s]\s*(?=\S)",
    re.I,
)


def browser_keys(text: str) -> str:
    """A key or a combination in the browser's names: `Ctrl+a`, `CTRL-A` and `ctrl + a` are `Control+a`.

    What is no usual name stays as it is written; the browser refuses it if it does not know it.
    """
    if len(text) == 1:
        return "Space" if text.isspace() else text
    rest, names, at = text.strip(), [], 0
    while modifier := _MODIFIER.match(rest, at):
        names.append(_name(modifier[1]))
        at = modifier.end()
    key = _name(rest[at:])
    # Who writes Ctrl+A does not hold Shift.
    return "+".join([*names, key.lower() if len(key) == 1 and names and "Shift" not in names else key])


def _name(part: str) -> str:
    if len(part) == 1:
        return part
    return _NAMES.get(re.sub(r"[-_\s]+", "", part).lower(), part)
