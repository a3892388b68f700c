"""What world models share, whatever they are made of.

dynamics     what code decides of a page's next state, without a model
change       the change of a page as an answer: labels, and what a model wrote read back
pages        the same for the whole next page
prompts      the question in words, for chat models, servers and the data of other trainers
attempts     answers sampled until one can be read
memory       real transitions: recalled where a dream repeats them, retrieved where it is like them
site_memory  the real pages of the site that is dreamed of, remembered before a model imagines
fidelity     one step against real pages
open_loop    errors that add up over the steps of a dream
calibration  how far a dream can be trusted
"""

from __future__ import annotations
