"""What world models share, whatever they are made of.

`change` and `pages` are the two forms of an answer, the change of a page and the whole next page: as labels that a
model learns to write, and read back from what it wrote. `prompts` puts the question to chat models in words, for local
models, for servers and for the data of other trainers alike. `attempts` samples an answer until one can be read.
`retrieval` finds real transitions that are like the one asked about; `confidence` says how far a dream can be trusted.
"""

from __future__ import annotations
