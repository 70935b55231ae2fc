"""The loop that most programs of these tests have."""

import torch


def training(net, loss, make_optimizer=torch.optim.AdamW):
    """The step of a training loop around a network's loss, a function without arguments."""
    optimizer = make_optimizer(
        [parameter for parameter in net.parameters() if parameter.requires_grad]
    )

    def step():
        loss().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
