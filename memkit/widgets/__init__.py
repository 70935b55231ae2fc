"""The explorers of the chapters. A widget asks, draws and explains; it holds no formula and no advice.

What the memory explorer says of a setup is ``memkit.fitting.advice``'s. Loads matplotlib and ipywidgets, never torch.

Reading order:

- ``in_page``: keyboard and names for controls, and where a reader clicks on a picture
- ``ahead``: the next pictures, drawn while nobody waits
- ``faces``: a view as HTML: picture, words, table
- ``panel``: controls above, a picture below, and what it means in words
- ``memory_explorer``: a model, a recipe, the shape of a step: where the bytes are
- ``step_timeline``: walk through the instants of a step
- ``frontier_explorer``: strategies on the memory-compute plane, the plan and its code
- ``allocator_lab``: play a trace through the allocator
- ``snapshot_view``: a snapshot as stacked bands, offline
- ``bit_explorer``: flip the bits of a code
- ``number_line``: every value of one or two formats
- ``rounding_lab``: add a small number again and again
- ``loss_scaling_lab``: what FP16 makes of gradients at each scale
- ``scaling_labs``: what a scaling, an outlier and a spike cost in eight bits
- ``batch_planner``: a global batch in tokens, cut for a card
- ``question_cards``: pick a choice and read why it is right or wrong
- ``ledger_search``: the claims that hold a word, by subject and verdict
- ``state_explorer``: the peak of a step under each optimizer
- ``adapter_explorer``: LoRA and QLoRA: parameters, bytes, what is kept
- ``sharding_explorer``: a model on 1 to 512 ranks, one stage after another
"""

from memkit import loaded_when_used

TYPE_CHECKING = False
if TYPE_CHECKING:  # what an editor reads; Python imports a name when it is asked for
    from memkit.widgets.adapter_explorer import AdapterExplorer
    from memkit.widgets.allocator_lab import AllocatorLab
    from memkit.widgets.batch_planner import BatchPlanner
    from memkit.widgets.bit_explorer import BitExplorer
    from memkit.widgets.frontier_explorer import FrontierExplorer
    from memkit.widgets.ledger_search import LedgerSearch
    from memkit.widgets.loss_scaling_lab import LossScalingLab
    from memkit.widgets.memory_explorer import MemoryExplorer
    from memkit.widgets.number_line import NumberLine
    from memkit.widgets.panel import Panel
    from memkit.widgets.question_cards import QuestionCards
    from memkit.widgets.rounding_lab import RoundingLab
    from memkit.widgets.scaling_labs import OutlierLab, ScalingLab, SpikeFilm
    from memkit.widgets.sharding_explorer import ShardingExplorer
    from memkit.widgets.snapshot_view import SnapshotView
    from memkit.widgets.state_explorer import StateExplorer
    from memkit.widgets.step_timeline import StepTimeline

__getattr__, __dir__, __all__ = loaded_when_used(__name__, __file__)
