"""What `warm_kit` imports before it forks: everything that runs import late."""

from __future__ import annotations

import flask
import lxml.html
import rank_kit
import stage_kit
import team_kit
import transformers.models.auto.modeling_auto
import transformers.models.auto.tokenization_auto
import transformers.models.llama.modeling_llama
import waitress

import dynaweb.cli.app
import dynaweb.commands.stages
import dynaweb.pipeline.session
import dynaweb.report

__all__ = [
    "dynaweb",
    "flask",
    "lxml",
    "rank_kit",
    "stage_kit",
    "team_kit",
    "transformers",
    "waitress",
]
