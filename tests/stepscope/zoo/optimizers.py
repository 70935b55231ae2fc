"""torch's own layers, torch.compile, a gradient scaler and every optimizer of note, on a small network."""

import functools

import torch
import torchao.optim
from torch import nn
from training_loop import training
from zoo.programs import MEASURE, Program

optim = torch.optim


def updated_by(optimizer, *, clips=False, scales=False, has_bias=True, backend=None, closure=False):
    def build(device):
        first, last = nn.Linear(256, 512, bias=has_bias), nn.Linear(512, 256, bias=has_bias)
        net = nn.Sequential(first, nn.GELU(), last).to(device)
        run = torch.compile(net, backend=backend) if backend else net
        updates, scaler = optimizer(net.parameters()), torch.amp.GradScaler(device, enabled=scales)

        def loss():
            updates.zero_grad()
            with torch.autocast(device, torch.float16, enabled=scales):
                value = run(torch.randn(16, 256, device=device)).float().pow(2).mean()
            scaler.scale(value).backward()
            return value

        def step():
            if closure:
                updates.step(loss)
                return
            loss()
            if scales:
                scaler.unscale_(updates)
            if clips:
                nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(updates)
            scaler.update()
            updates.zero_grad()

        return step

    return build


def translation(device):
    net = nn.Transformer(128, 4, 2, 2, 256, batch_first=True).to(device)

    def loss():
        source, target = (torch.randn(2, 32, 128, device=device) for _ in range(2))
        mask = nn.Transformer.generate_square_subsequent_mask(32, device=device)
        return net(source, target, tgt_mask=mask, tgt_is_causal=True).pow(2).mean()

    return training(net, loss, optim.Adam)


def recurrent(device):
    net = nn.LSTM(64, 128, 2, batch_first=True, dropout=0.1).to(device)
    return training(
        net, lambda: net(torch.randn(4, 16, 64, device=device))[0].pow(2).mean(), optim.Adam
    )


COMPILED = "a compiled function is traced as the code"
ONE_KERNEL = "workspace that a compiled step takes"
REFUSED = dict.fromkeys(("cuda", "cpu"), "needs the values of a tensor")

PROGRAMS = [
    Program(name="nn.Transformer", build=translation),
    Program(name="nn.LSTM", build=recurrent, warns=MEASURE),
    *(
        Program(name=name, build=updated_by(optimizer))
        for name, optimizer in (
            ("SGD", functools.partial(optim.SGD, lr=0.1)),
            ("SGD, momentum", functools.partial(optim.SGD, lr=0.1, momentum=0.9)),
            ("AdamW, foreach", functools.partial(optim.AdamW, foreach=True)),
            ("AdamW, fused", functools.partial(optim.AdamW, fused=True)),
            ("AdamW, for-loop", functools.partial(optim.AdamW, foreach=False)),
            ("Adafactor", optim.Adafactor),
            ("RMSprop", optim.RMSprop),
            ("Adagrad", optim.Adagrad),
        )
    ),
    Program(
        name="torchao's AdamW8bit",
        build=updated_by(torchao.optim.AdamW8bit),
        warns=ONE_KERNEL,
        off="−27.5 %",
        compiles=True,
    ),
    Program(
        name="torchao's AdamW4bit",
        build=updated_by(torchao.optim.AdamW4bit),
        warns=ONE_KERNEL,
        off="−58.1 %",
        compiles=True,
    ),
    Program(
        name="torchao's AdamWFp8",
        build=updated_by(torchao.optim.AdamWFp8),
        warns=ONE_KERNEL,
        off="0.00 %",
        compiles=True,
    ),
    Program(name="Muon", build=updated_by(optim.Muon, has_bias=False), warns=MEASURE),
    Program(
        name="LBFGS",
        build=updated_by(functools.partial(optim.LBFGS, max_iter=3), closure=True),
        warns="traced as if it took every iteration",
        off="+7.1 %",
    ),
    Program(
        name="LBFGS, a line search",
        refused=REFUSED,
        build=updated_by(
            functools.partial(optim.LBFGS, line_search_fn="strong_wolfe"), closure=True
        ),
    ),
    Program(name="GradScaler and clipping", build=updated_by(optim.AdamW, clips=True, scales=True)),
    *(
        Program(
            name=f"torch.compile, {backend}",
            build=updated_by(optim.AdamW, backend=backend),
            warns=COMPILED,
            off="0.00 %",
            compiles=backend == "inductor",
        )
        for backend in ("eager", "aot_eager", "inductor")
    ),
]
