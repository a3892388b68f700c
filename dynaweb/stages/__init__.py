"""The cached stages of a run, a file each; `dynaweb.train.STAGES` has their order.

demos             demonstrations of scripted experts or from a source, and an expert for every task
sft               supervised fine-tuning, and its longer control
graded            real episodes with the environment's verdict: for the judge, or to learn from offline
judge_fit         fitting a judge
explore           unrewarded real episodes for the world model, and first pages of dreams
world_model       fitting the world model, its fidelity and its calibration
drift             its errors open-loop, step after step of a dream
curriculum        tasks made of those that the phase before has failed
evaluate          held-out episodes of an arm, and the judge's audit on them

Besides:

arms              the policies that a run compares
world_model_eval  a world model against real pages, for `wm eval` and `wm show`
preflight         what cannot work, said before anything starts

The stages `rl` and `filtered-bc` are in `dynaweb.train`.
"""
