"""An instrument for training programs, on ``memkit``: what chapters 07 to 12 and the command line add to the kit."""

import stepscope.formula.experts
import stepscope.formula.job
import stepscope.formula.optimizers
import stepscope.setup.optimizers  # noqa: F401 - each adds its records to the kit's tables
