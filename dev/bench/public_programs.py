"""The programs of other people's GPU runs, written again in our own words, for ``trace_script``.

Five programs with published measurements, and what each keeps alive, because that decides the peak:

- **xMem transformers**: a Hugging Face model in training mode, ``zero_grad`` before the batch is moved, four steps.
  Batch, outputs and loss of a step stay alive until the next step replaces them.
- **xMem CNNs**: a torchvision model, cross entropy, images of 86 × 86. Images, logits and loss stay alive too.
- **GPUMemNet MLPs**: linear layers with batch norm, activation and dropout, a softmax, then cross entropy, by Adam.
  An epoch has 4,096 samples, so most end with a smaller batch.
- **GPUMemNet transformers**: an embedding, ``nn.TransformerEncoder``, the mean over the tokens and a head, by Adam. The
  model runs twice on a batch before the training, for a printed summary; that batch stays alive.
- **GPUMemNet CNNs**: 3 × 3 convolutions, norm, activation and dropout one after another, a mean and a head, by Adam.

Sources: github.com/Stone-ResearchLife/xMem (perf_estimator/trainer/train_loop.py, dataset.py), arXiv:2510.21048;
github.com/itu-rad/GPUMemNet (NeuroNetGen_scripts), arXiv:2602.17817. Nothing is copied from them.
"""

import contextlib
import itertools
import sys
from collections.abc import Callable, Sequence

import torch
from torch import nn

FULL_LENGTH = 128
"""xMem cuts lines of text at so many tokens and pads a batch to its longest."""
NUM_SAMPLES = 4096

Build = Callable[[], Callable[[], object]]

GPT_SMALL = {
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "activation_function": "gelu",
}
TRANSFORMERS = {
    "distilbert/distilgpt2": ("GPT2Config", {"n_layer": 6}),
    "openai-community/gpt2": ("GPT2Config", {}),
    "cerebras/Cerebras-GPT-111M": (
        "GPT2Config",
        {"n_layer": 10, "n_embd": 768, "n_inner": 3072, "n_positions": 2048, **GPT_SMALL},
    ),
    "EleutherAI/gpt-neo-125M": (
        "GPTNeoConfig",
        {
            "hidden_size": 768,
            "num_layers": 12,
            "num_heads": 12,
            "attention_types": [[["global", "local"], 6]],
        },
    ),
    "facebook/opt-125m": ("OPTConfig", {}),
    "facebook/opt-350m": (
        "OPTConfig",
        {
            "hidden_size": 1024,
            "num_hidden_layers": 24,
            "ffn_dim": 4096,
            "num_attention_heads": 16,
            "word_embed_proj_dim": 512,
            "do_layer_norm_before": False,
        },
    ),
    "T5-small": (
        "T5Config",
        {
            "d_model": 512,
            "d_kv": 64,
            "d_ff": 2048,
            "num_layers": 6,
            "num_heads": 8,
            "decoder_start_token_id": 0,
        },
    ),
    "Qwen/Qwen3-4B": (
        "Qwen3Config",
        {
            "vocab_size": 151936,
            "hidden_size": 2560,
            "intermediate_size": 9728,
            "num_hidden_layers": 36,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "tie_word_embeddings": True,
        },
    ),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": (
        "Qwen2Config",
        {
            "vocab_size": 151936,
            "hidden_size": 1536,
            "intermediate_size": 8960,
            "num_hidden_layers": 28,
            "num_attention_heads": 12,
            "num_key_value_heads": 2,
            "tie_word_embeddings": False,
        },
    ),
    "meta-llama/Llama-3.2-3B-Instruct": (
        "LlamaConfig",
        {
            "vocab_size": 128256,
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "num_hidden_layers": 28,
            "num_attention_heads": 24,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "tie_word_embeddings": True,
        },
    ),
}
"""Each model's configuration class in transformers and what differs from its defaults, as the model's page gives it."""

CONVOLUTIONAL = {
    "VGG16": "vgg16",
    "VGG19": "vgg19",
    "ResNet50": "resnet50",
    "ResNet101": "resnet101",
    "ResNet152": "resnet152",
    "MobileNetV2": "mobilenet_v2",
    "ConvNeXtTiny": "convnext_tiny",
    "ConvNeXtBase": "convnext_base",
    "RegNetX400MF": "regnet_x_400mf",
    "RegNetY400MF": "regnet_y_400mf",
}
"""Torchvision's constructors; MnasNet is made by its class, for 10 classes."""

ACTIVATIONS = {
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "identity": nn.Identity,
    "leaky_relu": nn.LeakyReLU,
    "mish": nn.Mish,
    "prelu": nn.PReLU,
    "relu": nn.ReLU,
    "selu": nn.SELU,
    "softplus": nn.Softplus,
    "swish": nn.SiLU,
    "tanh": nn.Tanh,
}


def transformer(
    model: str, optimizer: str, batch: int, lengths: Sequence[int] = (FULL_LENGTH,) * 4
) -> Build:
    """The program of one transformer run; ``lengths`` are the tokens of each step's batch."""
    with_torchvision_operators()
    import transformers

    config_class, options = TRANSFORMERS[model]

    def build():
        config = getattr(transformers, config_class)(**options)
        if config_class == "T5Config":
            network = transformers.T5ForConditionalGeneration(config)
        else:
            network = transformers.AutoModelForCausalLM.from_config(config)
        chosen = getattr(torch.optim, optimizer)(network.parameters(), lr=1e-3)
        network.to("cuda")
        alive, steps = {}, iter(lengths)

        def step():
            chosen.zero_grad()
            shape = (batch, next(steps))
            ids = torch.randint(0, 1000, shape, device="cpu")
            mask = torch.ones(shape, dtype=torch.long, device="cpu")
            if batch > 1:
                mask[:, -1] = 0  # some line of the batch is shorter: attention gets a mask
            texts = {"input_ids": ids, "attention_mask": mask, "labels": ids.clone()}
            alive["batch"] = {name: tensor.to("cuda") for name, tensor in texts.items()}
            alive["outputs"] = network(**alive["batch"])
            alive["loss"] = alive["outputs"].loss
            alive["loss"].backward()
            chosen.step()

        return step

    return build


def convolutional(model: str, optimizer: str, batch: int, size: int = 86) -> Build:
    """The program of one run of a convolutional network."""
    with_torchvision_operators()
    from torchvision import models

    def build():
        network = models.MNASNet(alpha=1.0, num_classes=10) if model == "MnasNet" else None
        network = network or getattr(models, CONVOLUTIONAL[model])()
        network.to("cuda").train()
        chosen = getattr(torch.optim, optimizer)(network.parameters(), lr=1e-3)
        criterion, alive = nn.CrossEntropyLoss(), {}

        def step():
            chosen.zero_grad()
            alive["images"] = torch.rand(batch, 3, size, size, device="cpu").to("cuda")
            alive["labels"] = torch.randint(0, 10, (batch,), device="cpu").to("cuda")
            alive["outputs"] = network(alive["images"])
            alive["loss"] = criterion(alive["outputs"], alive["labels"])
            alive["loss"].backward()
            chosen.step()
            alive["largest"] = torch.max(alive["outputs"], 1)

        return step

    return build


def layer_widths(inputs: int, outputs: int, depth: int, architecture: str) -> list[int]:
    """Widths from the input to the last hidden layer of an MLP.

    >>> layer_widths(2346, 197, 2, "pyramid"), layer_widths(280, 12, 3, "gradual")
    ([2346, 1173, 586], [280, 191, 102, 13])
    """
    widths = [inputs]
    for _ in range(depth):
        narrower = {
            "pyramid": widths[-1] // 2,
            "bottleneck": widths[-1] // 2,
            "uniform": inputs,
            "gradual": widths[-1] - (inputs - outputs) // depth,
        }[architecture]
        widths.append(max(narrower, outputs))
    if architecture == "bottleneck":
        widths.append(max(widths[-1] // 2, outputs))
    return widths


def classified(
    network, classes: int, sizes: Sequence[int], draw: Callable, *kept, takes_largest=False
):
    """A training step by Adam on as many samples as ``sizes`` says, one number a step.

    ``draw(samples)`` makes a step's inputs in the host's memory. Inputs, labels, outputs and loss of a step stay alive
    until the next step replaces them, ``kept`` as long as the step does.
    """
    optimizer, criterion = torch.optim.Adam(network.parameters()), nn.CrossEntropyLoss()
    alive, steps = {"kept": kept}, iter(sizes)

    def step():
        samples = next(steps)
        alive["inputs"] = draw(samples).to("cuda")
        alive["labels"] = torch.randint(0, classes, (samples,), device="cpu").to("cuda")
        optimizer.zero_grad()
        alive["outputs"] = network(alive["inputs"])
        alive["loss"] = criterion(alive["outputs"], alive["labels"])
        alive["loss"].backward()
        optimizer.step()
        if takes_largest:
            alive["largest"] = torch.max(alive["outputs"], 1)

    return step


def after(
    product: nn.Module, norm: nn.Module, activation: str, has_dropout: str, has_norm: str
) -> list[nn.Module]:
    """One layer of a generated network: the product, then norm, activation and dropout where it has them."""
    layers = [product, *([norm] if has_norm == "1" else []), ACTIVATIONS[activation]()]
    return layers + ([nn.Dropout(0.3)] if has_dropout == "1" else [])


def perceptron(config: str, batch: int) -> Build:
    """The program of one MLP run; ``config`` says inputs, outputs, depth, architecture, activation, dropout, norm."""
    *sizes, architecture, activation, has_dropout, has_norm = config.split()
    inputs, outputs, depth = map(int, sizes)
    rest = NUM_SAMPLES % batch or batch

    def build():
        layers, widths = [], layer_widths(inputs, outputs, depth, architecture)
        for narrow, wide in itertools.pairwise(widths):
            layers += after(
                nn.Linear(narrow, wide), nn.BatchNorm1d(wide), activation, has_dropout, has_norm
            )
        network = nn.Sequential(*layers, nn.Linear(widths[-1], outputs), nn.Softmax(dim=1)).to(
            "cuda"
        )
        network(torch.rand(2, inputs, device="cuda"))  # a printed summary of the model runs it once

        def draw(samples):
            return torch.rand(samples, inputs, device="cpu")

        return classified(network, outputs, (batch, rest, batch, batch), draw)

    return build


def stack(config: str, batch: int) -> Build:
    """The program of one stack of 3 × 3 convolutions.

    ``config`` says channels, classes, architecture, first width, depth, size, activation, dropout and norm.
    """
    channels, classes, architecture, first, depth, size, activation, has_dropout, has_norm = (
        config.split()
    )
    widths = filters(architecture, int(first), int(depth))
    classes, shape = int(classes), (int(channels), int(size), int(size))
    rest = 10_000 % batch or batch

    def build():
        layers = []
        for narrow, wide in itertools.pairwise((int(channels), *widths)):
            product = nn.Conv2d(narrow, wide, 3, padding=1)
            layers += after(product, nn.BatchNorm2d(wide), activation, has_dropout, has_norm)
        head = (
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(widths[-1], classes),
            nn.Softmax(dim=1),
        )
        network = nn.Sequential(*layers, *head).to("cuda")

        def draw(samples):
            return torch.rand(samples, *shape, device="cpu")

        return classified(network, classes, (batch, batch, rest, batch), draw)

    return build


def filters(architecture: str, first: int, depth: int) -> list[int]:
    """Widths of a stack, at most 2,048 filters wide.

    >>> filters("gradual", 64, 12)[:3], filters("pyramid", 126, 24)[-1], filters("uniform", 98, 2)
    ([64, 73, 85], 1823, [98, 98])
    >>> filters("hourglass", 110, 29)[13:16]
    [1661, 1685, 1386]
    """
    top = 2048 / first
    match architecture:
        case "uniform":
            return [first] * depth
        case "pyramid":
            return [int(first * (top ** (1 / depth)) ** place) for place in range(depth)]
        case "gradual":
            return [int(first * (top ** (1 / (2 * depth))) ** place) for place in range(depth)]
        case "hourglass":
            half, rest = depth // 2, depth - depth // 2
            wider = [int(first * (top ** (1 / half)) ** place) for place in range(half)]
            return wider + [
                int(first * (top ** (1 / rest)) ** (depth - place - 1))
                for place in range(half, depth)
            ]
    raise ValueError(
        f"architecture={architecture!r} is not one of uniform, pyramid, gradual, hourglass"
    )


class Classifier(nn.Module):
    """A transformer's encoder over tokens, whose mean is classified."""

    def __init__(self, classes, width, layers, heads, inner, dropout, length, vocab):
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        self.places = nn.Parameter(torch.zeros(1, length, width))
        layer = nn.TransformerEncoderLayer(width, heads, inner, dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers)
        self.head = nn.Linear(width, classes)

    def forward(self, tokens):
        return self.head(self.encoder(self.embedding(tokens) + self.places).mean(dim=1))


def encoder(config: str, batch: int) -> Build:
    """The program of one encoder run.

    ``config`` says classes, width, layers, heads, inner width, dropout, length, vocabulary and samples of an epoch.
    """
    classes, width, layers, heads, inner, dropout, length, vocab, samples = config.split()
    classes, length, vocab = int(classes), int(length), int(vocab)
    rest = int(samples) % batch or batch

    def build():
        network = Classifier(
            classes, int(width), int(layers), int(heads), int(inner), float(dropout), length, vocab
        ).to("cuda")

        def draw(samples):
            return torch.randint(0, vocab, (samples, length), device="cpu")

        first_batch = draw(batch).to("cuda")
        network(first_batch)  # tried once, and run again for a summary of the model
        network(first_batch)
        return classified(
            network, classes, (batch, batch, rest, batch), draw, first_batch, takes_largest=True
        )

    return build


def with_torchvision_operators() -> None:
    """Name the operators that torchvision's wheel for CUDA lacks beside a torch for CPUs: its import asks for them.

    One that loads brings its own, which may not be defined twice.
    """
    with contextlib.suppress(ImportError, RuntimeError, OSError):
        import torchvision  # noqa: F401

        return
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]  # half of it, of which the next import would be given the rest
    with contextlib.suppress(RuntimeError):
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            if not hasattr(torch.ops.torchvision, name):
                library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        KEPT.append(library)


KEPT: list = []
"""A library's names go when it is freed."""
