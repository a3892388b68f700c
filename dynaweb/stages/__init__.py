"""The cached stages of a run, a file each; `dynaweb.train.STAGES` has their order.

demos             demonstrations of scripted experts
sft               supervised fine-tuning, and its longer control
explore           unrewarded real episodes for the world model, and first pages of dreams
world_model       fitting the world model, its fidelity and its calibration
world_model_eval  a world model against real pages, one step and open-loop
preflight         what cannot work, said before anything starts
graded            real episodes with the environment's verdict
judge             fitting a judge
curriculum        tasks made of those that the phase before has failed
arms              the policies that a run compares
evaluate          held-out episodes of an arm, and the judge's audit on them
"""
