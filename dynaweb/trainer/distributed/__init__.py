"""One update computed by several processes.

team          models, trainers and engines on all ranks, driven by rank 0
team_trainer  the trainer of a team
team_engine   the engine of a team
sharded       trainers whose weights are sharded over ranks
deepspeed     by DeepSpeed's ZeRO
fsdp          by torch's FSDP2
"""
