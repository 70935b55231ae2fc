"""The public names of this folder, imported when they are used; an editor reads this list too."""

from .bit_explorer import BitExplorer as BitExplorer
from .explorer import Explorer as Explorer
from .frontier_explorer import FrontierExplorer as FrontierExplorer
from .memory_explorer import MemoryExplorer as MemoryExplorer
from .panel import Panel as Panel
from .step_film import StepFilm as StepFilm
