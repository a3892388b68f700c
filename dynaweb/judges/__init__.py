"""Judges: what their scores may be, how trainable ones are made, and how any of them is checked against the
environment.

- `scores` refuses what is no score, and a judge that says nothing at all;
- `making` creates the judge of a recipe, trained weights and parts of a combination included;
- `rollouts` plays the graded real episodes that judges are fitted and audited on;
- `calibration` turns log-odds into probabilities that mean what they say, and measures how well they do;
- `fitting` is the stage that fits a trainable judge; `audit` compares judges with the environment's verdicts;
- `alarm` tells when a policy has begun to please its judge instead of doing its tasks.
"""
