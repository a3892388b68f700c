"""One update computed by several processes.

team          models, trainers and engines on all ranks, driven by rank 0
team_trainer  the trainer of a team
team_engine   the engine of a team
deepspeed     DeepSpeed's ZeRO: weights and optimizer state spread over ranks
"""
