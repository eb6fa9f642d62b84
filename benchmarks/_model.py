"""The model every benchmark of the engine runs, and its sizes."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAME = "smollm2-135m"


def model_folder() -> Path:
    """Returns the folder of SmolLM2-135M in float32, fetched once into the folder the demo uses."""
    folder = ROOT / ".demo" / "models" / NAME
    if not folder.is_dir():
        from tinkex.server.models.pull import pull

        pull(NAME, ROOT / ".demo", lambda line: print(line, file=sys.stderr, flush=True))
    return folder


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a decoder that determine its work."""

    num_layers: int
    hidden: int
    mlp: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int

    @classmethod
    def read(cls, folder: Path) -> Sizes:
        """Reads the sizes from a folder's config.json."""
        config = json.loads((folder / "config.json").read_text())
        heads = config["num_attention_heads"]
        return cls(
            num_layers=config["num_hidden_layers"],
            hidden=config["hidden_size"],
            mlp=config["intermediate_size"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads", heads),
            head_dim=config.get("head_dim", config["hidden_size"] // heads),
            vocab=config["vocab_size"],
        )

    def layer_matrices(self) -> dict[str, tuple[int, int]]:
        """Returns (in, out) of every matrix of a layer."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "q": (self.hidden, queries),
            "k": (self.hidden, keys),
            "v": (self.hidden, keys),
            "o": (queries, self.hidden),
            "gate": (self.hidden, self.mlp),
            "up": (self.hidden, self.mlp),
            "down": (self.mlp, self.hidden),
        }
