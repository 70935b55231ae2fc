"""Wrong answers to the judged exercises of chapter 08, each with a part of what its judge has to say."""

import torch

from book.exercises.chapter_08 import accuracy


@torch.no_grad()
def _joins(net, batches):
    outputs, targets = [], []
    for x, y in batches:
        outputs.append(net(x))
        targets.append(y)
    return (torch.cat(outputs).argmax(-1) == torch.cat(targets)).float().mean().item()


@torch.no_grad()
def _keeps_logits(net, batches):
    outputs = [(net(x), y) for x, y in batches]
    hits = sum((logits.argmax(-1) == y).sum().item() for logits, y in outputs)
    return hits / sum(len(y) for _, y in outputs)


@torch.no_grad()
def _keeps_classes(net, batches):
    classes = torch.cat([net(x).argmax(-1) for x, _ in batches])
    return (classes == torch.cat([y for _, y in batches])).float().mean().item()


def _with_graphs(net, batches):
    hits = sum((net(x).argmax(-1) == y).sum().item() for x, y in batches)
    return hits / sum(len(y) for _, y in batches)


@torch.no_grad()
def _mean_of_means(net, batches):
    return sum((net(x).argmax(-1) == y).float().mean().item() for x, y in batches) / len(batches)


@torch.no_grad()
def _a_tensor(net, batches):
    return sum((net(x).argmax(-1) == y).sum() for x, y in batches) / sum(len(y) for _, y in batches)


def _switches_off(net, batches):
    torch.set_grad_enabled(False)
    return accuracy(net, batches)


def _resume(where="cpu", assign=False, loads=("net", "optimizer"), gives=False):
    """A function that resumes; by default the right one."""

    def resume(file, net, optimizer):
        checkpoint = torch.load(file, map_location=where)
        if "net" in loads:
            net.load_state_dict(checkpoint["net"], assign=assign)
        if "optimizer" in loads:
            optimizer.load_state_dict(checkpoint["optimizer"])
        return checkpoint if gives else None

    return resume


WRONG = {
    "8.2": (
        (_joins, "at the end once more where they are joined"),
        (_keeps_logits, "the logits of every batch are kept"),
        (_keeps_classes, "something of every token is kept"),
        (_with_graphs, "for a backward that never comes"),
        (_mean_of_means, "the mean of the batches' means"),
        (_a_tensor, "You returned a tensor"),
        (_switches_off, "You left gradients switched off"),
        (lambda net, batches: accuracy(net, batches[-1:]), "the last batch alone"),
        (lambda net, batches: 1 - accuracy(net, batches), "the share of misses"),
        (lambda net, batches: None, "You returned a NoneType"),
        (
            lambda net, batches: accuracy(net, batches) * sum(len(y) for _, y in batches),
            "the number of hits",
        ),
        (lambda net, batches: 0.9, "yours is 0.9000"),
    ),
    "8.4": (
        (_resume(where=None), "the file comes to the card"),
        (_resume(where=None, gives=True), "more than weights and states: something outside"),
        (_resume(assign=True), "no longer the net's"),
        (_resume(loads=("net",)), "it would start again at step 1"),
        (_resume(loads=("optimizer",)), "not the weights of the file"),
        (lambda file, net, optimizer: None, "not the weights of the file"),
    ),
}
