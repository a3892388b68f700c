"""What a machine serves: environments for people at a terminal, Gymnasium and OpenEnv, and reports (`reports`).

`environment` opens an environment of a recipe, dreams included, outside of a run; `episode` plays it by text, one reply
of a policy at a time. On these stand `gym` (`gymnasium.make("dynaweb/sites-v0")`), `openenv` (`dynaweb env serve`,
behind `gate`) and `terminal` (`dynaweb play`).
"""
