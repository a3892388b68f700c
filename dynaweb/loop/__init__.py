"""The loop: tasks -> rollouts (policy x environment) -> judge -> experts mixed in -> token rows -> update -> weights.

One job each:

- `rules` what code can decide about an action; `players` who decides; `rollout` episodes, one or many at once;
- `verdicts` what an episode is worth; `experts` demonstrations, as rollouts and as token rows; `tasks` which tasks;
- `demos`, `sft`, `explore`, `worldmodel`, `rl` (with `groups`), `evaluate` one stage each, cached by what matters;
- `workspace` what stages share (with `meter`, `files`, `weights`); `waves` episodes and `training` updates that
  survive a kill; `stages` the order of a whole run;
- `closing` the numbers that a run ends with, and `api` the calls behind `dynaweb.run` and its like.

What a run leaves in its folder, beside what `dynaweb.runs.folder` lists:

    metrics.jsonl             rows `update` (of sft, sft-<n>, world-model, fidelity, rl, filtered-bc), `eval`, `rollout`
    trajectories/             demos, explore, dreams or rollouts (on real pages), eval-<arm> with verdict and judgement
    checkpoints/              sft, sft-<n>, world-model, dynaweb, filtered-bc: one folder of weights each
    summary.json              arms with one success per episode, world-model measures per probe and by step of the dream
    report.html               the report

Episodes of all stages are coroutines whose model calls meet in batches (`dynaweb.engines.scheduler`). Every random
choice derives from the run's seed and a label, never from a shared generator, so a stage can be resumed at any update.
"""
