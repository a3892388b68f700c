"""Judges: what their scores may be, and how any of them is checked against the environment.

reward       rewards of trajectories: scores of a judge, the environment's verdicts
scores       what is no score, and a judge that says nothing at all
calibration  log-odds as probabilities that mean what they say
audit        a judge against the environment's verdicts
alarm        when a policy begins to please its judge instead of doing its tasks

The judge of a recipe is built in `dynaweb.pipeline.judge`, and fitted in `dynaweb.stages.judge_fit`.
"""
