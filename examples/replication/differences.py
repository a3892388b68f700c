"""What training has changed, small enough for a release: a PEFT adapter of the difference between two models.

    python examples/replication/differences.py runs/A/checkpoints/policy adapter --base smollm2 --rank 16

The policies of the replication train all weights, 0.3 GB each. Of every matrix the adapter holds the part of its change
that has the given rank (the truncated singular value decomposition, which is the nearest one), and vectors, such as
those of norms, whole. The script prints how much of the change that is; `--merge FOLDER` writes the model that the
adapter makes of the base, to evaluate it: `dynaweb eval --policy base --model FOLDER`. Needs `dynaweb[lora]`.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoTokenizer

from dynaweb.errors import ConfigError, DynawebError
from dynaweb.trainer.models import load_model, resolve, save_model

PREFIX = "base_model.model"
"""What PEFT puts before the names of a model's modules."""
HEAD = "lm_head"
"""The output head. Where it shares the weights of the embedding, PEFT wants its adapter beside the embedding's."""


@dataclass
class Difference:
    """An adapter, and how much of the change it holds.

    `tensors` are by PEFT's names: of a linear layer `lora_A` [rank, in] and `lora_B` [out, rank], of an embedding
    `lora_embedding_A` [rank, tokens] and `lora_embedding_B` [width, rank], of anything else the new values. `changed`
    and `kept` are sums of squares: of the whole change, and of what the adapter holds of it.
    """

    rank: int
    tied: bool
    tensors: dict[str, Tensor] = field(default_factory=dict)
    layers: list[str] = field(default_factory=list)
    whole: list[str] = field(default_factory=list)
    changed: float = 0.0
    kept: float = 0.0

    def save(self, folder: Path, base: str) -> None:
        """Write `adapter_config.json` and `adapter_model.safetensors` (bfloat16), as PEFT reads them."""
        config = LoraConfig(
            r=self.rank,
            lora_alpha=self.rank,
            target_modules=self.layers,
            modules_to_save=self.whole or None,
            task_type="CAUSAL_LM",
            base_model_name_or_path=base,
            inference_mode=True,
            ensure_weight_tying=self.tied,
        )
        folder.mkdir(parents=True)
        config.save_pretrained(str(folder))
        tensors = {name: one.to(torch.bfloat16).contiguous() for name, one in self.tensors.items()}
        save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})


def difference(base: Any, trained: nn.Module, rank: int) -> Difference:
    """The adapter that takes `base` nearest to `trained`.

    Raises `ConfigError` where the two differ in more than their values, or in biases.
    """
    made = Difference(rank, tied=bool(base.config.tie_word_embeddings))
    new = dict(trained.named_parameters())
    old = dict(base.named_parameters())
    if {name: one.shape for name, one in old.items()} != {name: one.shape for name, one in new.items()}:
        raise ConfigError("the trained model is not of the base's shape; name the model that training started from")
    for name, before in old.items():
        after = new[name].detach().float()
        change = after - before.detach().float()
        if not change.any():
            continue
        if not name.endswith(".weight"):
            raise ConfigError(
                f"{name} was trained, and the adapters of this script hold no biases: keep the whole model"
            )
        made.changed += float(change.square().sum())
        path = name.rpartition(".")[0]
        module = base.get_submodule(path)
        if isinstance(module, nn.Linear | nn.Embedding):
            left, sizes, right = torch.linalg.svd(change, full_matrices=False)
            a = right[:rank] * sizes[:rank, None].sqrt()
            b = left[:, :rank] * sizes[:rank].sqrt()
            made.kept += float(sizes[:rank].square().sum())
            made.layers.append(path)
            if isinstance(module, nn.Embedding):
                made.tensors |= {f"{PREFIX}.{path}.lora_embedding_A": b.T, f"{PREFIX}.{path}.lora_embedding_B": a.T}
                path = HEAD if made.tied else ""
            if path:
                made.tensors |= {f"{PREFIX}.{path}.lora_A.weight": a, f"{PREFIX}.{path}.lora_B.weight": b}
        else:
            made.kept += float(change.square().sum())
            made.whole.append(path)
            made.tensors[f"{PREFIX}.{name}"] = after
    return made


def merged(base: Any, made: Difference) -> Any:
    """The base, changed in place, with the adapter added to its weights."""
    with torch.no_grad():
        for path in made.layers:
            weight = base.get_submodule(path).weight
            a, b = (made.tensors.get(f"{PREFIX}.{path}.lora_{one}.weight") for one in "AB")
            if a is None or b is None:
                b, a = (made.tensors[f"{PREFIX}.{path}.lora_embedding_{one}"].T for one in "AB")
            weight += (b.to(torch.bfloat16).float() @ a.to(torch.bfloat16).float()).to(weight.dtype)
        for name in made.whole:
            base.get_submodule(name).weight.copy_(made.tensors[f"{PREFIX}.{name}.weight"].to(torch.bfloat16))
    return base


def main() -> int:
    """Write the adapter and print its size and its share of the change."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("trained", type=Path, help="folder of the trained model")
    parser.add_argument("out", type=Path, help="folder of the adapter, which must not exist")
    parser.add_argument("--base", default="smollm2", help="the model that training started from")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--merge", type=Path, help="where to write base and adapter as one model")
    options = parser.parse_args()
    try:
        for folder in filter(None, (options.out, options.merge)):
            if folder.exists():
                raise ConfigError(f"{folder} exists; name a folder that does not")
        base = load_model(resolve(options.base), dtype=torch.float32, device="cpu")
        made = difference(base, load_model(options.trained, dtype=torch.float32, device="cpu"), options.rank)
        if not made.tensors:
            raise ConfigError(f"{options.trained} has the weights of {options.base}: nothing was trained")
        made.save(options.out, options.base)
        size = (options.out / "adapter_model.safetensors").stat().st_size
        share = made.kept / made.changed
        print(f"{options.out}: rank {options.rank}, {size / 1e6:.1f} MB, {share:.1%} of the squared change")
        if options.merge:
            save_model(merged(base, made), options.merge, AutoTokenizer.from_pretrained(options.trained))
    except DynawebError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
