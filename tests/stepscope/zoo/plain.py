"""Plain torch as strangers write it: nanoGPT's batches, a shuffled loader, averaged weights, policies, streams."""

import copy
import io

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Categorical
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn
from training_loop import training
from zoo.programs import MEASURE, Program

LENGTH, VOCAB, WIDTH = 32, 256, 128


def nanogpt(device):
    net = nn.Sequential(nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, VOCAB)).to(device)
    text = torch.arange(5000, device="cpu") % VOCAB

    def loss():
        starts = torch.randint(len(text) - LENGTH, (8,))
        rows = torch.stack([text[i : i + LENGTH] for i in starts]).to(device)
        value = F.cross_entropy(net(rows).flatten(0, 1), rows.flatten())
        return value if torch.isfinite(value) else torch.zeros(())

    return training(net, loss)


def shuffled(device):
    net = nn.Embedding(VOCAB, WIDTH).to(device)
    texts = [torch.arange(10 * number, device="cpu") % VOCAB for number in range(1, 9)]
    loader = torch.utils.data.DataLoader(
        texts, batch_size=8, shuffle=True, collate_fn=lambda rows: pad_sequence(rows, True)
    )
    return training(net, lambda: sum(net(rows.to(device)).pow(2).mean() for rows in loader))


def averaged(device):
    net = nn.Sequential(nn.Linear(WIDTH, 256), nn.BatchNorm1d(256), nn.Linear(256, WIDTH)).to(
        device
    )
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.99), use_buffers=True)
    train = training(net, lambda: net(torch.randn(8, WIDTH, device=device)).pow(2).mean())

    def step():
        train()
        average.update_parameters(net)

    return step


def policy(device):
    net = nn.Linear(WIDTH, 16).to(device)

    def loss():
        choice = Categorical(logits=net(torch.randn(64, WIDTH, device=device)))
        return -choice.log_prob(choice.sample()).mean()

    return training(net, loss)


def layers_left_out(device):
    net = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4)).to(device)

    def loss():
        x = torch.randn(64, WIDTH, device=device)
        for layer in net:
            if torch.rand(1) >= 0.0:
                x = layer(x)
        return x.sum()  # its gradient is expanded: a product copies it

    return training(net, loss)


def image_net(device, mode):
    net = nn.Sequential(
        nn.Conv2d(3, 64, 3), nn.Upsample(scale_factor=2, mode=mode), nn.Conv2d(64, 3, 1)
    ).to(device)

    def loss():
        with torch.autograd.detect_anomaly():
            return net(torch.randn(4, 3, 16, 16, device=device)).pow(2).mean()

    return training(net, loss)


def streamed(device):
    net = nn.Linear(WIDTH, WIDTH).to(device)

    def loss():
        if device == "cpu":
            return net(torch.randn(64, WIDTH)).pow(2).mean()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        with torch.cuda.stream(torch.cuda.Stream()):
            x = torch.randn(64, WIDTH, device="cpu").pin_memory().to(device, non_blocking=True)
        end.record()
        while not end.query():
            pass
        print(f"{64 / start.elapsed_time(end):.1f} rows/ms")
        return net(x).pow(2).mean()

    return training(net, loss)


def sparse(device):
    net = nn.Embedding(VOCAB, WIDTH, sparse=True).to(device)
    return training(
        net,
        lambda: net(torch.randint(VOCAB, (8,), device=device)).pow(2).mean(),
        torch.optim.SparseAdam,
    )


def by_func(device):
    net = nn.Linear(WIDTH, WIDTH).to(device)
    weights = {name: value.detach() for name, value in net.named_parameters()}

    def loss(weights):
        return (
            torch.func.functional_call(net, weights, torch.randn(8, WIDTH, device=device))
            .pow(2)
            .mean()
        )

    return lambda: torch.func.grad(loss)(weights)


def nested(device, layout):
    net = nn.Linear(WIDTH, WIDTH).to(device)

    def loss():
        rows = [torch.randn(length, WIDTH) for length in (5, 9)]
        return (
            net(torch.nested.nested_tensor(rows, layout=layout, device=device))
            .values()
            .pow(2)
            .mean()
        )

    return training(net, loss)


def compressed(device):
    net = nn.Linear(WIDTH, WIDTH).to(device)
    return training(
        net, lambda: (torch.eye(WIDTH, device=device).to_sparse_csr() @ net.weight).pow(2).mean()
    )


class Adjoint(torch.autograd.Function):
    """Euler's steps forward, and backward again with gradients taken inside the backward."""

    @staticmethod
    def forward(ctx, field, x, *parameters):
        for _ in range(5):
            x = x + field(x) / 5
        ctx.field = field
        ctx.save_for_backward(x, *parameters)
        return x

    @staticmethod
    def backward(ctx, grad):
        x, *parameters = ctx.saved_tensors
        sums = [torch.zeros_like(parameter) for parameter in parameters]
        for _ in range(5):
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                y = ctx.field(x)
                of_x, *of_parameters = torch.autograd.grad(y, (x, *parameters), grad)
            x, grad = x - y.detach() / 5, grad + of_x / 5
            for total, part in zip(sums, of_parameters, strict=True):
                total.add_(part, alpha=0.2)
        return None, grad, *sums


def adjoint(device):
    net = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64)).to(device)

    def loss():
        x = torch.randn(512, 64, device=device, requires_grad=True)
        return F.mse_loss(
            Adjoint.apply(net, x, *net.parameters()), torch.zeros(512, 64, device=device)
        )

    return training(net, loss)


def spoken(device):
    net = nn.ModuleList(
        [
            nn.Conv1d(40, WIDTH, 3, 2, 1),
            nn.LSTM(WIDTH, WIDTH, batch_first=True),
            nn.Linear(WIDTH, 29),
        ]
    )
    convolution, recurrent, head = net.to(device)

    def loss():
        sound = torch.randn(8, 40, 200, device=device)
        letters = torch.randint(1, 29, (8, 20), device=device)
        scores = (
            head(recurrent(convolution(sound).transpose(1, 2))[0]).log_softmax(-1).transpose(0, 1)
        )
        lengths = torch.full((8,), 100, device=device), torch.full((8,), 20, device=device)
        return F.ctc_loss(scores, letters, *lengths, zero_infinity=True)

    return training(net, loss)


def saved(device):
    net = nn.Sequential(nn.Linear(WIDTH, 256), nn.SiLU(), nn.Linear(256, WIDTH)).to(device)
    train = training(net, lambda: net(torch.randn(64, WIDTH, device=device)).square().mean())

    def step():
        train()
        torch.save({name: tensor.cpu() for name, tensor in net.state_dict().items()}, io.BytesIO())

    return step


def averaged_anew(device):
    net = nn.Sequential(nn.Linear(WIDTH, 256), nn.BatchNorm1d(256), nn.Linear(256, WIDTH)).to(
        device
    )
    average, rows = AveragedModel(net), [torch.randn(8, WIDTH, device="cpu") for _ in range(3)]
    train = training(net, lambda: net(torch.randn(8, WIDTH, device=device)).square().mean())

    def step():
        train()
        average.update_parameters(net)
        update_bn(rows, average, device=device)

    return step


def orthogonal(device):
    cell = nn.RNNCell(64, WIDTH).to(device)
    nn.utils.parametrizations.orthogonal(cell, "weight_hh")
    return training(cell, lambda: cell(torch.randn(8, 64, device=device)).square().mean())


def folded(device):
    net = nn.Linear(27, 27).to(device)

    def loss():
        image = torch.randn(8, 3, 64, 64, device=device)
        windows = net(F.unfold(image, 3, padding=1).mT)
        return F.mse_loss(F.fold(windows.mT, (64, 64), 3, padding=1), image)

    return training(net, loss)


def packed(device):
    net = nn.ModuleList([nn.Embedding(VOCAB, WIDTH), nn.LSTM(WIDTH, WIDTH, batch_first=True)]).to(
        device
    )
    words, recurrent = net

    def loss():
        rows = words(torch.randint(VOCAB, (4, LENGTH), device=device))
        out, _ = recurrent(
            pack_padded_sequence(rows, torch.tensor([LENGTH, 17, 9, 3]), batch_first=True)
        )
        return pad_packed_sequence(out, batch_first=True)[0].pow(2).mean()

    return training(net, loss)


def from_numpy(device):
    net = nn.Linear(WIDTH, WIDTH).to(device)
    data = torch.from_numpy(np.ones((2000, WIDTH), dtype=np.float32))
    return training(
        net, lambda: net(data[torch.randint(2000, (8,), device="cpu")].to(device)).pow(2).mean()
    )


def whitened(device):
    """Rows made independent of each other by the root of their covariance, and a rotation that is learned."""
    turn = nn.Parameter(0.1 * torch.randn(WIDTH, WIDTH, device=device))
    data = torch.randn(512, WIDTH, device=device)

    def loss():
        values, vectors = torch.linalg.eigh(data.mT @ data / 512)
        rows = data @ (vectors * values.rsqrt()) @ torch.linalg.matrix_exp(turn - turn.mT)
        return rows.atan2(data).pow(2).mean()

    return training(nn.ParameterList([turn]), loss)


def best_kept(device):
    net, best = nn.Linear(WIDTH, WIDTH).to(device), {"loss": float("inf")}
    train = training(net, lambda: net(torch.randn(8, WIDTH, device=device)).pow(2).mean())

    def step():
        train()
        loss = net(torch.ones(8, WIDTH, device=device)).pow(2).mean().item()
        if loss < best["loss"]:
            best.update(loss=loss, state=copy.deepcopy(net.state_dict()))

    return step


def refused(words: str) -> dict[str, str]:
    return dict.fromkeys(("cuda", "cpu"), words)


PROGRAMS = [
    Program(name="nanoGPT's batches", build=nanogpt),
    Program(name="a shuffled loader that pads", build=shuffled),
    Program(name="averaged weights of a BatchNorm", build=averaged, warns=MEASURE),
    Program(name="a policy of torch.distributions", build=policy),
    Program(name="layers left out by chance, a sum as loss", build=layers_left_out),
    Program(
        name="nearest, looking for anomalies",
        build=lambda device: image_net(device, "nearest"),
        warns=MEASURE,
    ),
    Program(
        name="bilinear, looking for anomalies",
        build=lambda device: image_net(device, "bilinear"),
        warns=MEASURE,
    ),
    Program(name="streams and timed events", build=streamed),
    Program(name="an adjoint of its own, a mean squared error", build=adjoint),
    Program(
        name="CTC, lengths written down", build=spoken, refused={"cpu": "does not follow ctc_loss"}
    ),
    Program(name="a checkpoint each step", build=saved),
    Program(
        name="averaged weights, their BatchNorm counted anew", build=averaged_anew, warns=MEASURE
    ),
    Program(
        name="an orthogonal weight",
        build=orthogonal,
        refused=refused("allclose.default needs the values"),
    ),
    Program(name="windows folded", build=folded, warns=MEASURE),
    Program(
        name="packed rows", build=packed, refused={"cpu": "does not follow pad_packed_sequence"}
    ),
    Program(name="rows of numpy's", build=from_numpy),
    Program(name="whitened and rotated", build=whitened, warns=MEASURE),
    Program(
        name="the best state kept", build=best_kept, warns="may be missing. Say the value: assume"
    ),
    Program(
        name="gradients that are sparse",
        build=sparse,
        refused=refused("does not follow sparse tensors"),
    ),
    Program(
        name="torch.func.grad",
        build=by_func,
        refused=refused("does not follow torch.func's transforms"),
    ),
    Program(
        name="nested rows, jagged",
        build=lambda device: nested(device, torch.jagged),
        refused=refused("does not follow nested tensors"),
    ),
    Program(name="a matrix in CSR", build=compressed, refused=refused("does not follow")),
]
