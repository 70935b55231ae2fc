"""The memory explorer of the job chapters: LoRA, 4 bits, where the optimizer steps, and what would help."""

from functools import partial

from memkit.widgets import memory_explorer as kit
from memkit.widgets.explorer import Choice, Number, View
from stepscope.setup.adapters import BASES, AdapterConfig, linear_layers
from stepscope.setup.job import Job
from stepscope.setup.places import Place


class MemoryExplorer(kit.MemoryExplorer):
    """The kit's controls and three more."""

    asked_later = (*kit.MemoryExplorer.asked_later, "place")

    def view(
        self,
        lora_rank=Number("LoRA rank, 0: all weights", 0, low=0, high=128),
        base=Choice("Base weights", BASES, "as loaded"),
        place=Choice("Optimizer steps", tuple(Place), Place.AFTER_BACKWARD),
        **state,
    ) -> View:
        targets = linear_layers(kit.MODELS[state["model"]])
        adapter = AdapterConfig(rank=lora_rank, base=base, targets=targets) if lora_rank else None
        self.make_setup = partial(Job, adapter=adapter, place=place)
        return super().view(**state)
