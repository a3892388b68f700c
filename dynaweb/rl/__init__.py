"""What the RL stage of a run is made of; `dynaweb.train` has its loop.

sources        where rollouts come from: dreams, real pages, recorded episodes
ahead          rollouts that run ahead of training
rows           steps as token rows with their log-probabilities
batch          rollouts as token rows with advantages, old and reference log-probabilities
importance     importance sampling: engines, and policies, that are not the one in training
updater        the gradient steps of one update
replay         WebRL's replay buffer
audit          rollouts repeated on real pages: is the judge still right?
refresh        the world model kept true by real steps of the policy
refresh_judge  the fitted judge kept right by graded episodes of the policy
checkpoints    what is saved with the policy, and how a run that was killed goes on
key            the cache key of the stage
"""
