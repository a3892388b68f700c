"""Pre-training of the tiny base model on the pre-training sites only: `python -m tools.tiny_model --help`.

One small model learns these jobs, so that it can play policy, world model and judge as a large language model would:

- `click`, `act`: one instruction, one action ("Click 'Sailing'.", "What is the Price?"); those of several actions
  name each of them;
- `goal`: go to a place and do one thing there, named in hindsight from random walks; worded unlike the sites' tasks;
- `point`: a drill that lists names with their element numbers and keys with their values;
- `change`: the change that an action makes, as a sentence and a script;
- `next`: the whole next page;
- `judge`: whether an episode reached its goal, with near misses, wrong answers, loops and early stops.

Pages come from random walks through the sites without a browser (`dynaweb.web.static`), whose pages equal Chromium's.
"""
