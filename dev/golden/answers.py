"""The answers that a redesign has to leave as they are, as hashes: formula, traces, jobs, plans, what panels say.

    python dev/golden/answers.py write FILE     the answers of this tree; kinds may follow
    python dev/golden/answers.py compare        this tree's beside those of dev/golden/answers.json
    python dev/golden/answers.py compare plans  one kind of them

Each answer has one hash for each of its aspects, so that a difference names its kind: instants, ledger, FLOPs, events
in their order, events as a multiset. ``answers.json`` was written by commit fbf7a0a, before there were two packages;
``old`` is what that tree called things. The order of a CPU autocast's frees is C++'s and differs between any two runs,
so there the multiset alone is compared. The script goes when the redesign is done.
"""

import hashlib
import importlib.util
import json
import random
import sys
import warnings
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))
IS_OLD = importlib.util.find_spec("memkit.tool") is not None  # one package

from memkit import (
    OptimizerConfig,
    TrainingSetup,
    activation_bytes,
    block_ledger,
    bytes_per_parameter,
    estimate_memory,
    models,
    recipes,
    strategies,
    trace_memory,
    training_build,
)
from memkit.cards import CARDS
from memkit.formula import count_by_kind
from memkit.formula.model import model_of
from memkit.recipes import ADAMW
from memkit.recomputation import blocks_ledger, step_flops
from memkit.strategies import NONE, OPS, Strategy

if IS_OLD:
    from memkit.fitting import find_plans
    from memkit.formula import count_adapter_parameters
    from memkit.setup import AdapterConfig, Layout
    from memkit.sharding import estimate_sharded
    from memkit.widgets import (
        AdapterExplorer,
        FrontierExplorer,
        MemoryExplorer,
        PlanExplorer,
        ShardingExplorer,
    )

    trace_script, job_build, experts_config = trace_memory, training_build, replace

    def optimizer(name: str, implementation: str) -> OptimizerConfig:
        return OptimizerConfig(name=name, implementation=implementation)

    def make_job(place="after backward", adapter=None, optimizer=ADAMW, **fields) -> TrainingSetup:
        return TrainingSetup(optimizer=replace(optimizer, place=place), adapter=adapter, **fields)

else:
    from memkit.widgets import FrontierExplorer
    from stepscope import (
        OPTIMIZERS,
        AdapterConfig,
        Job,
        Layout,
        estimate_sharded,
        find_plans,
        job_build,
        trace_script,
    )
    from stepscope.experts import experts_config
    from stepscope.formula import count_adapter_parameters
    from stepscope.widgets import AdapterExplorer, MemoryExplorer, PlanExplorer, ShardingExplorer

    make_job = Job

    def optimizer(name: str, implementation: str) -> OptimizerConfig:
        return OptimizerConfig(record=OPTIMIZERS[name], implementation=implementation)


def sha(value: object) -> str:
    """Twelve letters that stand for a value."""
    return hashlib.sha1(repr(value).encode()).hexdigest()[:12]


def instants(timeline) -> list:
    """Every instant, by part."""
    return [
        (
            i.name,
            i.step,
            i.micro_batch,
            i.weights,
            i.gradients,
            i.optimizer_states,
            i.activations,
            i.temporary,
        )
        for i in timeline.instants
    ]


MODELS = [
    models.GPT2_SMALL,
    models.GPT2_LARGE,
    models.LLAMA_2_7B,
    models.LLAMA_3_8B,
    models.LLAMA_32_1B,
    models.QWEN_2_05B,
    models.QWEN_3_06B,
    models.MISTRAL_7B,
    models.TINY_GPT2,
    models.TINY_LLAMA,
]
TINY = [
    models.TINY_GPT2,
    models.TINY_LLAMA,
    replace(models.QWEN_3_06B, num_layers=3, vocab_size=1000),
    replace(models.GPT2_SMALL, num_layers=3, vocab_size=800),
]
PRECISIONS = [
    recipes.FP32,
    recipes.AUTOCAST_BF16,
    recipes.AUTOCAST_FP16,
    recipes.PURE_BF16,
    recipes.BF16_MASTER,
    recipes.MEGATRON,
    recipes.KAHAN_BF16,
    recipes.BF16_TWO_GRADIENTS,
]
OPTIMIZERS_OF_TORCH = [
    ("AdamW", "foreach"),
    ("AdamW", "for-loop"),
    ("AdamW", "fused"),
    ("SGD", "foreach"),
    ("SGD momentum", "fused"),
]
LARGE_STATES = [
    ("AdamW", "foreach"),
    ("AdamW", "fused"),
    ("AdamW", "for-loop"),
    ("Adafactor", "for-loop"),
    ("Lion", "foreach"),
    ("Lion", "for-loop"),
    ("torchao 8-bit AdamW", "fused"),
    ("torchao 4-bit AdamW", "fused"),
    ("8-bit AdamW", "fused"),
    ("torchao FP8 AdamW", "fused"),
    ("paged AdamW", "fused"),
    ("paged 8-bit AdamW", "foreach"),
]


def drawn_setup(rng: random.Random, tiny: bool = False) -> TrainingSetup:
    """A setup that has a formula."""
    while True:
        model = rng.choice(TINY if tiny else MODELS)
        every = [
            *strategies.all_strategies(model.num_layers)[:7],
            strategies.every(2),
            strategies.every(3),
        ]
        every += [strategies.groups(2), strategies.sequential(3), strategies.NONE, strategies.NONE]
        fields = dict(  # noqa: C408
            precision=rng.choice(PRECISIONS[:4] if tiny else PRECISIONS),
            recomputation=rng.choice(every),
            optimizer=optimizer(*rng.choice(OPTIMIZERS_OF_TORCH)),
            micro_batch_size=rng.choice([1, 2, 3, 4]),
            seq_len=rng.choice([64, 128, 256, 500]),
            grad_accum_steps=rng.choice([1, 1, 1, 2, 3]),
            attention=rng.choice(["stored", "flash", "efficient"]),
            dropout=rng.choice([0.0, 0.0, 0.1]),
            uses_fused_norm=rng.choice([True, True, False]),
            upcasts_logits=rng.choice([True, False]),
            sets_grads_to_none=rng.choice([True, True, False]),
            device=rng.choice(["cuda", "cuda", "cpu"]),
        )
        try:
            setup = TrainingSetup(model=model, **fields)
            estimate_memory(setup)
            return setup
        except ValueError:
            continue


def saved_products(setup: TrainingSetup, strategy: Strategy) -> list[str]:
    """Names of the products of one block whose outputs the strategy's policy keeps."""
    one, saves = replace(setup, model=setup.model.one_block, recomputation=NONE), strategy.policy()
    names = {"attention": "attention", "gelu": "activation", "silu": "activation"}
    ops = [op for op in model_of(one).graph.operations if op.unit == 1 and op.reads]
    return [names.get(op.kind, op.name) for op in ops if op.kind in OPS and saves(op.kind)]


def formula_answers(rng: random.Random, count: int = 400) -> list[dict]:
    """The first column."""
    found = []
    for _ in range(count):
        setup = drawn_setup(rng)
        timeline, flops = estimate_memory(setup), step_flops(setup)
        again = setup, setup.recomputation
        found.append(
            {
                "case": f"{setup.model.name} {setup.precision.name} {setup.recomputation.name} {setup.device}",
                "instants": sha(instants(timeline)),
                "ledger": sha(
                    [(x.name, x.op, x.axes, x.dtype, x.count) for x in block_ledger(setup).lines]
                ),
                "flops": sha([flops.forward, flops.backward, flops.recomputed, flops.in_kernel]),
                "kept": sha(
                    [
                        activation_bytes(setup),
                        timeline.at("forward").temporary,  # autocast's casts
                        blocks_ledger(*again).num_bytes,
                    ]
                ),
                "products": sha(saved_products(*again)),
                "bytes per parameter": sha(
                    sorted(bytes_per_parameter(setup.precision, setup.optimizer).items())
                ),
                "events": sha(
                    [
                        (e.block, e.num_bytes, e.part, e.phase, e.op, e.where, e.step)
                        for e in timeline.events
                    ]
                ),
            }
        )
    return found


def traced(build, trace, device: str) -> dict:
    """A trace's answers; autocast's frees have no order of their own on the CPU."""
    timeline = trace(build, device=device)
    events = [
        (e.num_bytes, e.part, e.phase, e.op, e.where.endswith("(backward)"), e.is_scratch)
        for e in timeline.events
    ]
    events = sorted(map(repr, events)) if device == "cpu" else events
    return {"instants": sha(instants(timeline)), "events": sha(events)}


def trace_answers(rng: random.Random, count: int = 100) -> list[dict]:
    """The second column, by the kit's tracer; every third by the instrument's too."""
    found = []
    for number in range(count):
        setup = drawn_setup(rng, tiny=True)
        answer = {
            "case": f"{setup.model.name} {setup.precision.name} {setup.recomputation.name} {setup.device}"
        }
        for prefix, trace in (("", trace_memory), ("script's ", trace_script))[
            : 1 + (number % 3 == 0)
        ]:
            try:
                answers = traced(training_build(setup), trace, setup.device)
            except Exception as error:  # noqa: BLE001 - a refusal is an answer too
                answers = {"refused": type(error).__name__}
            answer |= {prefix + aspect: value for aspect, value in answers.items()}
        found.append(answer)
    return found


RECOMPUTATIONS = [strategies.NONE, strategies.FULL, strategies.SAVE_ATTENTION, strategies.every(2)]


def job_answers(rng: random.Random, count: int = 300) -> list[dict]:
    """Adapters, 4 bits, experts, places, layouts and more optimizers, by formula; every tenth traced."""
    base = replace(models.QWEN_3_06B, num_layers=6, vocab_size=5000, intermediate_size=1536)
    experts = experts_config(base, num_experts=8, experts_per_token=2, expert_size=256)
    mixed = experts_config(
        base, num_experts=8, experts_per_token=2, expert_size=256, dense_layers=(0, 3)
    )
    found = []
    while len(found) < count:
        model = rng.choice(
            [models.GPT2_SMALL, models.LLAMA_2_7B, models.LLAMA_32_1B, experts, mixed]
        )
        place = rng.choice(
            ["after backward"] * 3 + ["in backward", "on the host", "on the host, gradients too"]
        )
        linear = (
            ["qkv", "output", "up", "down"]
            if model.fuses_qkv
            else ["query", "key", "value", "output"]
        )
        adapter = rng.choice([None, None, (8, "as loaded", 0.0), (16, "nf4", 0.0), (4, "nf4", 0.1)])
        targets = tuple(sorted(rng.sample(linear, rng.randint(1, 4))))
        layout = rng.choice([None, None, None, (0, 4), (1, 4), (2, 4), (3, 8)])
        name = rng.choice(LARGE_STATES)
        options = dict(  # noqa: C408
            num_replicas=rng.choice([1, 2]),
            offloads=rng.choice([False, False, True]),
            param_dtype=rng.choice([None, "bfloat16"]),
        )
        fields = dict(  # noqa: C408
            model=model,
            precision=rng.choice([PRECISIONS[i] for i in (0, 1, 3, 4)]),
            micro_batch_size=rng.choice([1, 2, 3]),
            seq_len=rng.choice([64, 128, 200]),
            grad_accum_steps=rng.choice([1, 1, 2]),
            attention=rng.choice(["stored", "flash"]),
            recomputation=rng.choice(RECOMPUTATIONS),
            dropout=rng.choice([0.0, 0.0, 0.1]),
            device=rng.choice(["cuda", "cuda", "cpu"]),
        )
        case = f"{model.name} {place} {adapter} {layout} {name} {fields['device']} {fields['precision'].name}"
        try:
            lora = adapter and AdapterConfig(
                rank=adapter[0], base=adapter[1], dropout=adapter[2], targets=targets
            )
            job = make_job(place=place, adapter=lora, optimizer=optimizer(*name), **fields)
            if layout is None:
                timeline = estimate_memory(job)
            else:
                more = options if layout[0] >= 2 else {}
                timeline = estimate_sharded(job, Layout(stage=layout[0], dp_size=layout[1], **more))
            flops = step_flops(job)
            found.append(
                {
                    "case": case,
                    "instants": sha(instants(timeline)),
                    "ledger": sha(
                        [(x.name, x.op, x.axes, x.count) for x in block_ledger(job).lines]
                    ),
                    "flops": sha(
                        [flops.forward, flops.backward, flops.recomputed, flops.in_kernel]
                    ),
                    "counts": sha(
                        [count_by_kind(model), count_adapter_parameters(model, lora) if lora else 0]
                    ),
                    "events": sha(
                        [
                            (e.num_bytes, e.part, e.phase, e.op, e.where, e.step)
                            for e in timeline.events
                        ]
                    ),
                }
            )
        except ValueError as error:
            found.append(
                {
                    "case": case,
                    "refused": str(error)[:40] if "has no formula" in str(error) else "ValueError",
                }
            )
    return found


def program_answers() -> list[dict]:
    """Jobs as PyTorch runs them, traced."""
    base = replace(models.QWEN_3_06B, num_layers=3, vocab_size=1000, intermediate_size=512)
    experts = experts_config(
        base, num_experts=8, experts_per_token=2, expert_size=64, dense_layers=(1,)
    )
    lora, dropped = AdapterConfig(rank=8), AdapterConfig(rank=4, targets=("qkv", "up"), dropout=0.1)
    jobs = [
        make_job(model=models.TINY_LLAMA, seq_len=64, adapter=lora),
        make_job(
            model=models.TINY_GPT2,
            seq_len=64,
            adapter=dropped,
            precision=recipes.AUTOCAST_BF16,
            recomputation=strategies.FULL,
        ),
        make_job(model=experts, seq_len=64, precision=recipes.PURE_BF16),
        make_job(model=experts, seq_len=64, precision=recipes.AUTOCAST_BF16, micro_batch_size=2),
        make_job(model=experts, seq_len=32, device="cpu"),
        make_job(model=models.TINY_LLAMA, seq_len=64, place="in backward"),
        make_job(
            model=models.TINY_LLAMA,
            seq_len=64,
            place="in backward",
            adapter=lora,
            precision=recipes.PURE_BF16,
        ),
        *(
            make_job(model=models.TINY_LLAMA, seq_len=64, optimizer=optimizer(*name))
            for name in (
                ("Lion", "foreach"),
                ("Adafactor", "for-loop"),
                ("Muon", "foreach"),
                ("8-bit AdamW", "fused"),
            )
        ),
    ]
    found = []
    for number, job in enumerate(jobs):
        found.append({"case": f"job {number}"} | traced(job_build(job), trace_script, job.device))
    return found


def plan_answers() -> list[dict]:
    """What the planner finds, chooses and says."""
    jobs = [
        (models.LLAMA_32_1B, "RTX 4090", 2**14, 2048, 1),
        (models.GPT2_XL, "T4", 2**13, 1024, 1),
        (models.LLAMA_2_7B, "RTX 4090", 2**13, 2048, 1),
        (models.LLAMA_2_7B, "H100 SXM", 2**15, 2048, 1),
        (models.LLAMA_3_8B, "H100 SXM", 2**17, 4096, 8),
        (models.GPT2_SMALL, "RTX 3090", 2**16, 512, 1),
    ]
    found = []
    for model, card, tokens, seq_len, num_cards in jobs:
        plans = find_plans(
            model, CARDS[card], tokens_per_step=tokens, seq_len=seq_len, num_cards=num_cards
        )
        found.append(
            {
                "case": f"{model.name} {card} {num_cards}",
                "tried": len(plans.plans),
                "first": plans.first and plans.first.name,
                "front": sha([(p.name, p.peak_bytes, p.seconds, p.gives_up) for p in plans.front]),
                "missed": sha([(p.name, p.peak_bytes) for p in plans.missed]),
                "not tried": sha(plans.not_tried),
            }
        )
    return found


def panel_answers(rng: random.Random) -> list[dict]:
    """What explorers draw and say for moves drawn by lot."""
    found = []
    for explorer in (
        MemoryExplorer,
        FrontierExplorer,
        AdapterExplorer,
        PlanExplorer,
        ShardingExplorer,
    ):
        panel = explorer()
        for number in range(12):
            name = rng.choice(sorted(set(panel.controls) & COMMON[explorer.__name__]))
            try:
                panel.set(**{name: rng.choice(values_of(panel.controls[name]))})
            except ValueError:
                continue
            view = panel.shown
            table = [[str(cell) for cell in row] for row in view.table or ()]
            found.append(
                {
                    "case": f"{explorer.__name__} {number} {name}",
                    "picture": sha(view.chart.svg()),
                    "words": sha(tuple(view.words)),
                    "table": sha(table),
                    "more": sha(tuple(view.more())) if view.more else "",
                }
            )
    return found


COMMON = {
    "MemoryExplorer": {
        "model",
        "card",
        "precision",
        "micro_batch_size",
        "seq_len",
        "grad_accum_steps",
        "attention",
        "dropout",
        "recomputation",
    },
    "FrontierExplorer": {"model", "micro_batch_size", "seq_len"},
    "AdapterExplorer": {"model", "targets", "rank", "dtype", "micro_batch_size", "seq_len", "card"},
    "PlanExplorer": {"plan"},
    "ShardingExplorer": {
        "model",
        "stage",
        "dp_size",
        "precision",
        "seq_len",
        "micro_batch_size",
        "card",
    },
}


def values_of(control) -> list:
    """A few values that a control takes."""
    if hasattr(control, "low"):
        return list(range(control.low, control.high + 1, max(1, (control.high - control.low) // 7)))
    options = getattr(control, "options", None) or getattr(control, "values", None)
    return [value[1] if isinstance(value, tuple) else value for value in options]


KINDS = {
    "formula": lambda: formula_answers(random.Random(7)),
    "trace": lambda: trace_answers(random.Random(8)),
    "jobs": lambda: job_answers(random.Random(11)),
    "programs": program_answers,
    "plans": plan_answers,
    "panels": lambda: panel_answers(random.Random(13)),
}


def main(verb: str, *names: str) -> int:
    """Write the answers, or compare them; returns how many differ."""
    warnings.simplefilter("ignore")
    file = Path(names[0]) if verb == "write" else HERE / "answers.json"
    stored = json.loads(file.read_text()) if file.exists() else {}
    kinds = names[verb == "write" :] or tuple(KINDS)
    now = {kind: KINDS[kind]() for kind in kinds}
    if verb == "write":
        file.write_text(json.dumps(stored | now, indent=0) + "\n")
        return 0
    num_different = 0
    for kind in kinds:
        pairs = list(zip(stored[kind], now[kind], strict=True))
        different = [(old, new) for old, new in pairs if old != new]
        num_different += len(different)
        print(f"{kind}: {len(pairs) - len(different)} of {len(pairs)} equal")
        for old, new in different[:8]:
            print(
                "  ",
                old["case"],
                {k: (old.get(k), new.get(k)) for k in old | new if old.get(k) != new.get(k)},
            )
    return num_different


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
