"""What pictures cost by documents alone, against the processors themselves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("PIL")
from vision_families import FAMILIES

from dynaweb.estimate.pictures import tokens_of
from dynaweb.estimate.shapes import shape_of
from dynaweb.trainer.models import load_model
from dynaweb.trainer.vision import ModelVision

SIZES = [(320, 240), (240, 320), (64, 48), (100, 30), (31, 31), (1280, 720), (33, 32)]


@pytest.mark.parametrize("name", sorted(FAMILIES.keys() - {"llama4"}))
def test_tokens_are_those_of_the_processor(name: str, tmp_path: Path) -> None:
    FAMILIES[name].write(tmp_path)
    vision = ModelVision(str(tmp_path), lambda image: b"")
    tokenizer = vision.processor.tokenizer
    for width, height in SIZES:
        ids = tokenizer(vision.expansion_of_size(width, height), add_special_tokens=False).input_ids
        assert tokens_of(tmp_path, width, height) == ids.count(vision.image_id), (width, height)


def test_what_no_document_says_is_not_known(tmp_path: Path) -> None:
    assert tokens_of(tmp_path, 64, 48) is None
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2_5_vl"}))
    assert tokens_of(tmp_path, 64, 48) is None
    (tmp_path / "config.json").write_text("[")
    assert tokens_of(tmp_path, 64, 48) is None


def test_the_weights_of_a_model_that_sees_are_counted(tmp_path: Path) -> None:
    FAMILIES["idefics3"].write(tmp_path)
    shape = shape_of(str(tmp_path))
    assert shape is not None and shape.vision > 0
    language = [p.numel() for n, p in load_model(tmp_path).named_parameters() if "text_model" in n or "lm_head" in n]
    assert shape.language == sum(language)
    assert shape.parameters == shape.language + shape.vision
