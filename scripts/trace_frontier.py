"""Trace the strategies that the frontier explorer shows, once: peaks of whole models by tokens in the micro-batch.

    python scripts/trace_frontier.py

Writes chapters/recordings/frontier_traced_cuda_rules.json. With flash attention the bytes depend on micro-batch times
sequence alone (the rotary tables apart), so one trace serves every pair with the same product.
"""

import json
import time
from datetime import date

import torch

from memkit.program.transformer import strategy_build
from memkit.recomputation.frontier import FILE, MODELS, TOKENS, shown_strategies, traced_setup
from memkit.tracing.trace import trace_memory


def main() -> None:
    torch.set_num_threads(1)
    peaks: dict[str, dict[str, list[int]]] = {}
    for model in MODELS.values():
        peaks[model.name] = {}
        for strategy in shown_strategies(model):
            start = time.perf_counter()
            row = [
                trace_memory(strategy_build(traced_setup(model, tokens), strategy), steps=2).peak_bytes
                for tokens in TOKENS
            ]
            peaks[model.name][strategy.name] = row
            print(model.name, strategy.name, f"{time.perf_counter() - start:.0f} s", flush=True)
    about = {
        "what": "peak_bytes of two traced steps by tokens in the micro-batch, CUDA's rules",
        "command": "python scripts/trace_frontier.py", "torch": torch.__version__, "date": date.today().isoformat(),
        "recipe": "pure bf16, fused AdamW, flash attention, no dropout",
    }  # fmt: skip
    text = json.dumps({"about": about, "tokens": TOKENS, "peak_bytes": peaks}, ensure_ascii=False)
    FILE.write_text(text.replace('], "', '],\n "').replace("}, ", "},\n") + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
