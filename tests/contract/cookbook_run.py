"""What of `tinker-cookbook` runs, for the interpreter of its environment; the last line is JSON.

    python cookbook_run.py imports
    python cookbook_run.py recipes <base_url> <api_key> <model>

Recipes run unchanged in the current folder, which has each dataset and tokenizer under its name on
the hub; only what counts as a right answer is replaced, since a random model knows none.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

LORA_RANK = 8
STEPS = 2


def imports() -> dict[str, Any]:
    """Which modules can be imported, and why the others can not."""
    import tinker
    import tinker_cookbook

    root = Path(tinker_cookbook.__file__).parent
    failures: dict[str, str] = {}
    names = list(_module_names(root))
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:
            failures[name] = f"{type(error).__name__}: {error}"
    return {"origin": tinker.__spec__.origin, "modules": names, "failures": failures}


def _module_names(root: Path) -> Iterator[str]:
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root.parent).with_suffix("").parts
        if parts[-1] != "__main__" and not parts[-1].endswith("_test"):
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def recipes(base_url: str, api_key: str, model: str) -> dict[str, Any]:
    """The metrics of each step of each recipe."""
    os.environ |= {"TINKER_BASE_URL": base_url, "TINKER_API_KEY": api_key}
    seen = {}
    for recipe in RECIPES:
        folder = Path("logs", recipe.__name__).resolve()
        recipe(model, str(folder))
        seen[recipe.__name__] = {
            "metrics": rows_of(folder / "metrics.jsonl"),
            "checkpoints": checkpoints(folder),
        }
    return seen


def checkpoints(folder: Path) -> list[dict[str, Any]]:
    return rows_of(folder / "checkpoints.jsonl")


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def supervised_loop(model: str, log_path: str) -> None:
    from tinker_cookbook.recipes import sl_loop

    settings = {"model_name": model, "log_path": log_path, "lora_rank": LORA_RANK}
    sl_loop.main(
        sl_loop.Config(**settings, batch_size=4, max_length=256, max_steps=STEPS, save_every=1)
    )


def supervised_basic(model: str, log_path: str) -> None:
    import chz
    from tinker_cookbook.recipes import sl_basic

    settings = {"log_path": log_path, "lora_rank": LORA_RANK, "max_steps": STEPS}
    config = sl_basic.build_config_blueprint(model).apply(settings).make()
    builder = config.dataset_builder
    small = chz.replace(builder.common_config, batch_size=4, max_length=256)
    builder = chz.replace(builder, common_config=small)
    sl_basic.main(chz.replace(config, dataset_builder=builder))


def rl_loop(model: str, log_path: str) -> None:
    from tinker_cookbook.recipes import rl_loop as recipe

    recipe.get_reward = lambda response, answer: float(len(response) % 2)  # else there is no slope
    settings = {"model_name": model, "log_path": log_path, "lora_rank": LORA_RANK}
    recipe.main(
        recipe.Config(**settings, batch_size=2, group_size=4, max_tokens=8, max_steps=STEPS)
    )


def math_rl(model: str, log_path: str, **more: Any) -> None:
    from tinker_cookbook.recipes.math_rl import arithmetic_env, train

    arithmetic_env.ArithmeticEnv.check_answer = lambda self, sample: bool(len(sample) % 2)
    settings = {"model_name": model, "log_path": log_path, "lora_rank": LORA_RANK}
    sizes = {"groups_per_batch": 4, "group_size": 4, "max_tokens": 5, "max_steps": STEPS}
    config = train.CLIConfig(**settings, **sizes, **more, behavior_if_log_dir_exists="delete")
    asyncio.run(train.cli_main(config))


def math_rl_async(model: str, log_path: str) -> None:
    math_rl(model, log_path, max_steps_off_policy=2)


def math_rl_stream(model: str, log_path: str) -> None:
    from tinker_cookbook.rl.train import StreamMinibatchConfig

    config = StreamMinibatchConfig(groups_per_batch=4, num_minibatches=2)
    math_rl(model, log_path, stream_minibatch_config=config)


def dpo(model: str, log_path: str) -> None:
    from tinker_cookbook.recipes.preference.dpo import train

    settings = {"model_name": model, "log_path": log_path, "dataset": "hhh", "max_length": 256}
    config = train.CLIConfig(
        **settings, batch_size=4, max_steps=STEPS, behavior_if_log_dir_exists="delete"
    )
    train.cli_main(config)


def distill(model: str, log_path: str) -> None:
    """The teacher is what `supervised_loop` trained, so that it differs from the student."""
    from tinker_cookbook.recipes.distillation import on_policy_distillation as recipe

    settings = {"model_name": model, "log_path": log_path, "lora_rank": LORA_RANK}
    teacher = checkpoints(Path(log_path).with_name("supervised_loop"))[-1]["sampler_path"]
    config = recipe.CLIConfig(
        **settings,
        teacher_model=model,
        teacher_checkpoint=teacher,
        groups_per_batch=2,
        group_size=2,
        max_tokens=8,
        max_steps=STEPS,
        behavior_if_log_dir_exists="delete",
    )
    asyncio.run(recipe.cli_main(config))


RECIPES = (
    *(supervised_loop, supervised_basic, rl_loop, math_rl, math_rl_async, math_rl_stream),
    *(dpo, distill),
)
COMMANDS: dict[str, Callable[..., dict[str, Any]]] = {"imports": imports, "recipes": recipes}

if __name__ == "__main__":
    result = COMMANDS[sys.argv[1]](*sys.argv[2:])
    print(f"\n{json.dumps(result)}", flush=True)
    os._exit(0)  # the official client leaves threads behind
