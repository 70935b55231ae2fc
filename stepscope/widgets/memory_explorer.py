"""The memory explorer of the job chapters: LoRA, 4 bits, where the optimizer steps, and what would help."""

from functools import partial

from memkit.widgets import memory_explorer as kit
from memkit.widgets.explorer import Choice, Number, View
from stepscope.advice.changes import advice_in_words
from stepscope.experts import QWEN_3_30B_A3B
from stepscope.optimizers import OPTIMIZERS
from stepscope.setup import BASES, AdapterConfig, Job, Place, linear_layers

MODELS = kit.MODELS | {QWEN_3_30B_A3B.name: QWEN_3_30B_A3B}


class MemoryExplorer(kit.MemoryExplorer):
    """The kit's controls and three more, more optimizers, and what would help most."""

    models, optimizers = MODELS, OPTIMIZERS
    asked_later = (*kit.MemoryExplorer.asked_later, "base", "place")

    def view(
        self,
        model=Choice("Model", MODELS, "Llama-2-7B"),
        optimizer=Choice(
            "Optimizer", [n for n, record in OPTIMIZERS.items() if record.estimated], "AdamW"
        ),
        lora_rank=Number("LoRA rank (or 0)", 0, low=0, high=128),
        base=Choice("Base weights", BASES, "as loaded"),
        place=Choice("Optimizer steps", tuple(Place), Place.AFTER_BACKWARD),
        **state,
    ) -> View:
        targets = linear_layers(MODELS[model])
        adapter = AdapterConfig(rank=lora_rank, base=base, targets=targets) if lora_rank else None
        self.make_setup = partial(Job, adapter=adapter, place=place)
        return super().view(model=model, optimizer=optimizer, **state)

    def advice(self, setup: Job) -> tuple[str, ...]:
        return advice_in_words(setup), *super().advice(setup)
