"""Rollouts: episodes of an agent in an environment, dreamed or real.

episode     one episode, or many at once over a few environments
agents      who decides: a model, a scripted expert, chance
lookahead   an agent that imagines where its proposals lead
group       the judged rollouts of one update, n of each task, experts mixed in
tasks       drawing tasks by seed, templates in rotation
curriculum  which tasks an update plays
"""
