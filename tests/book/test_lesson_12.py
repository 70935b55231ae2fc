"""Lesson 12: its UNet beside diffusers' own, its sizes in the libraries, its explorer, numbers of its prose, README."""

import inspect
import re
from functools import cache
from pathlib import Path

import pytest
import torch
from cells import CHAPTERS, after_setup, texts_of
from wrong_answers.chapter_12 import ALSO_RIGHT

from book import check
from memkit.cards import CARDS
from memkit.tracing.trace import trace_memory
from stepscope import trace_script

TEXTS = texts_of("12")
LESSON = CHAPTERS / "12_pictures.ipynb"
README = (Path(__file__).parents[2] / "dev" / "NUMBERS.md").read_text(encoding="utf-8")
SD_15 = {
    "sample_size": 64,
    "in_channels": 4,
    "out_channels": 4,
    "block_out_channels": (320, 640, 1280, 1280),
    "layers_per_block": 2,
    "cross_attention_dim": 768,
    "attention_head_dim": 8,
}
"""The configuration of Stable Diffusion 1.5's UNet; the rest are diffusers' defaults."""


@cache
def lesson() -> dict:
    """The names of the lesson's UNet, its step, its sizes and its counts of pixels and tokens."""
    names = dict(after_setup(LESSON))
    wanted = "who-stands unet-res unet-attention unet-transformer unet-stage unet-parts unet-whole"
    names["display"] = lambda *_: None
    for cell in (*wanted.split(), "picture-step", "picture-build", "pixel-line", "tokens-count"):
        exec(compile(TEXTS[cell], cell, "exec"), names)
    return names


def explorer(**state):
    """The bars of the lesson's explorer."""
    if "PictureExplorer" not in lesson():
        exec(compile(TEXTS["explorer"], "explorer", "exec"), lesson())
    return {row[0]: row[1] for row in lesson()["PictureExplorer"](**state).shown.table[1:]}


def num_parameters(model) -> int:
    return sum(p.numel() for p in model.parameters())


def test_the_unet_has_the_parameters_of_diffusers_own():
    diffusers = pytest.importorskip("diffusers")
    with torch.device("meta"):
        own = diffusers.UNet2DConditionModel(**SD_15)
        vae = diffusers.AutoencoderKL(
            block_out_channels=(128, 256, 512, 512),
            layers_per_block=2,
            down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4,
        )
    assert num_parameters(own) == lesson()["P"] == lesson()["UNET"] == 859_520_964
    assert num_parameters(vae) == lesson()["VAE"]


def test_the_largest_tensor_of_a_decoded_picture():
    diffusers = pytest.importorskip("diffusers")
    sizes = []
    with torch.device("meta"):
        vae = diffusers.AutoencoderKL(
            block_out_channels=(128, 256, 512, 512),
            layers_per_block=2,
            up_block_types=("UpDecoderBlock2D",) * 4,
            down_block_types=("DownEncoderBlock2D",) * 4,
        )
        for module in vae.decoder.modules():
            module.register_forward_hook(lambda *call: sizes.append(2 * call[-1].numel()))
        vae.decoder(torch.empty(1, 4, 128, 128))
    assert "up to half a GiB each at 1,024 pixels" in TEXTS["who-read"]
    assert max(sizes) == 2**29


def test_the_text_encoders_have_the_parameters_of_the_libraries():
    hf = pytest.importorskip("transformers")
    with torch.device("meta"):
        clip = hf.CLIPTextModel(
            hf.CLIPTextConfig(
                hidden_size=768,
                intermediate_size=3072,
                num_hidden_layers=12,
                num_attention_heads=12,
            )
        )
        t5 = hf.T5EncoderModel(
            hf.T5Config(
                vocab_size=32128,
                d_model=4096,
                d_kv=64,
                d_ff=10240,
                num_layers=24,
                num_heads=64,
                feed_forward_proj="gated-gelu",
            )
        )
    assert num_parameters(clip) == lesson()["TEXT"]
    assert f"2 * {num_parameters(t5):_}" in TEXTS["who-stands"]


@pytest.mark.parametrize("way", [{}, {"recomputed": True}, {"autocast": False}, {"bits": 32}])
def test_the_unet_s_step_peaks_where_diffusers_own_does(way):
    """The lesson says: by less than half a percent."""
    diffusers = pytest.importorskip("diffusers")

    def build():
        unet = diffusers.UNet2DConditionModel(**SD_15).to("cuda").train()
        if way.get("recomputed"):
            unet.enable_gradient_checkpointing()
        if way.get("bits") == 32:
            optimizer = torch.optim.AdamW(unet.parameters(), foreach=False)
        else:
            optimizer = lesson()["EightBits"](unet.parameters(), {})

        def step():
            noisy = torch.randn(2, 4, 64, 64, device="cuda")
            text = torch.randn(2, 77, 768, device="cuda")
            times = torch.zeros(2, dtype=torch.int64, device="cuda")
            with torch.autocast("cuda", torch.float16, enabled=way.get("autocast", True)):
                guess = unet(noisy, times, text).sample
            torch.nn.functional.mse_loss(guess.float(), torch.randn_like(noisy)).backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    theirs = trace_script(build).for_step(2).peak_bytes
    ours = trace_memory(lesson()["build_of"](pictures=2, **way)).for_step(2).peak_bytes
    assert "less than half a percent" in TEXTS["unet-count-read"]
    assert abs(ours / theirs - 1) < 0.005


@pytest.mark.parametrize(
    "way",
    [{"pictures": 1}, {"pictures": 3, "bits": 32}, {"pictures": 2, "recomputed": True}],
    ids=lambda way: str(way["pictures"]),
)
def test_the_explorer_says_what_a_trace_says(way):
    traced = trace_memory(lesson()["build_of"](side=96, **way)).for_step(2)
    shown = explorer(
        side=768,
        pictures=way["pictures"],
        recomputed=way.get("recomputed", False),
        narrow=way.get("bits", 8) == 8,
    )
    first = float(shown["forward, end"].removesuffix(" GiB")) * 2**30
    copies = 0 if not way.get("recomputed") else lesson()["copies"]  # a block at a time has its own
    assert abs((first - copies) / traced.at("forward").total_bytes - 1) < 0.02


def test_the_answers_of_the_explorer_s_experiments():
    told = TEXTS["pixel-read"]
    many = {"side": 1024, "pictures": 2}
    for state, sizes in (
        (many, ("15.63",)),
        (many | {"recomputed": True}, ("7.06", "8.03")),
        (many | {"recomputed": True, "narrow": False}, ("12.81",)),
        ({"ema": True}, ("11.23",)),
        ({"narrow": False}, ("12.81",)),
        ({"narrow": False, "ema": True}, ("16.01",)),
    ):
        bars = explorer(**state).values()
        assert all(f"{size} GiB" in bars and size in told for size in sizes)
    assert f"{CARDS['T4'].memory_bytes / 2**30:.2f} GiB" in told


def test_differences_of_the_published_rows():
    rows = re.findall(
        r"^\| (\d) \| (yes|no) \| (8|32) bits \| ([\d.]+) \| ([\d.]+) \|$",
        TEXTS["rows-text"],
        re.MULTILINE,
    )
    seen = {row[:3]: (float(row[3]), float(row[4])) for row in rows}
    (first, speed), (plain, plain_speed), (two, _), (wide, wide_speed) = seen.values()
    told = TEXTS["rows-read"]
    assert f"{wide - first:.2f} GB, recomputation {plain - first:.2f}" in told
    assert (
        f"are {two - plain:.2f} GB for two pictures more, so {(two - plain) / 2:.2f} a picture"
        in told
    )
    assert f"{plain_speed} steps a second and not {speed}" in told and wide_speed < speed
    assert f"860 million parameters, {6 * lesson()['P'] / 1e9:.1f} GB" in told
    assert f"the whole card, which has {CARDS['T4'].memory_bytes / 1e9:.2f}" in told
    assert f"they explain {2 * (lesson()['TEXT'] + lesson()['VAE']) / 1e9:.1f} GB" in told
    assert "a fifth of the speed" in TEXTS["back-read"] and round(1 - speed / plain_speed, 1) == 0.2


def test_the_moments_with_two_pictures():
    plain, again = (
        trace_memory(lesson()["build_of"](pictures=2, recomputed=recomputed)).for_step(2).peak
        for recomputed in (False, True)
    )
    told = TEXTS["rows-read"]
    assert f"all activations ({plain.activations / 1e9:.1f} GB)" in told
    assert plain.gradients < 0.01 * again.gradients  # where the backward begins
    assert f"gradients ({again.gradients / 1e9:.1f} GB) instead" in told
    assert f"falls by {(plain.total_bytes - again.total_bytes) / 1e9:.1f} GB only" in told


def test_what_adamw_s_default_of_today_takes_in_its_first_step():
    """At both sizes in the optimizer; fused nowhere more than the prose says."""

    def peaks(side, how):
        trace = trace_memory(
            lesson()["build_of"](side=side // 8, recomputed=True, bits=32, **how), steps=2
        )
        return [trace.for_step(step).peak for step in (1, 2)]

    default = {side: peaks(side, {"foreach": None})[0] for side in (512, 1024)}
    told = TEXTS["rows-read"]
    assert {peak.name for peak in default.values()} == {"optimizer peak"}
    [shown] = {f"{peak.total_bytes / 1e9:.2f}" for peak in default.values()}
    assert f"that is {shown} GB" in told
    assert all(peak.activations < 1e6 for peak in default.values())  # gone by then
    fused = [peak.total_bytes for side in default for peak in peaks(side, {"fused": True})]
    assert f"{max(fused) / 1e9:.2f} GB at most" in told


def test_gradients_that_stay_as_zeros_are_there_in_the_forward():
    source = TEXTS["picture-build"]
    assert source.count("zero_grad()") == 1
    names = dict(lesson())
    exec(source.replace("zero_grad()", "zero_grad(set_to_none=False)"), names)
    freed, kept = (
        trace_memory(some["build_of"](recomputed=True)).for_step(2).at("forward")
        for some in (lesson(), names)
    )
    more = (kept.total_bytes - freed.total_bytes) / 1e9
    assert f"through the next forward, {more:.1f} GB more at its end" in TEXTS["back-read"]


def test_autocast_pays_from_three_pictures_on():
    def forward(pictures, autocast):
        now = trace_memory(lesson()["build_of"](pictures, autocast=autocast)).for_step(2)
        return now.at("forward").total_bytes

    assert "from three pictures on" in TEXTS["pixel-autocast-read"]
    assert forward(2, True) > forward(2, False) and forward(3, True) < forward(3, False)


def test_what_the_transformer_blocks_keep():
    """The lesson's own count, by kinds of blocks in place of levels."""
    names = lesson()
    source = TEXTS["levels-watch"].partition("    def note")[0]
    exec(
        compile(
            source.replace('at["way"]', 'at["kind"]') + "    return unet, pack\n", "watch", "exec"
        ),
        names,
    )
    count = TEXTS["levels-count"].partition("\n\n\ntraced")[0].replace('way="down"', 'kind="none"')
    exec(compile(count, "count", "exec"), names)

    def build():
        unet, pack = names["watched_build"]()
        for module in unet.modules():
            kind = type(module).__name__
            if kind in ("ResBlock", "TransformerBlock", "Resize"):
                module.register_forward_pre_hook(
                    lambda _, inputs, kind=kind: names["at"].update(kind=kind)
                )
        return lambda: names["watched_step"](unet, pack)

    trace_memory(build, steps=1)
    kept = names["kept"]
    share = (
        sum(size for (kind, _), size in kept.items() if kind == "TransformerBlock") / kept.total()
    )
    assert "Seven tenths are the TransformerBlocks'" in TEXTS["levels-read"]
    assert round(share, 1) == 0.7


def test_convolutions_are_undercounted_as_the_page_on_numbers_says():
    from book.public_runs import load_public_runs

    errors = {
        name: [run.error for run in load_public_runs() if run.set == name and run.outcome == "ok"]
        for name in ("xMem CNNs", "GPUMemNet CNNs")
    }
    both = [error for some in errors.values() for error in some]
    low = sum(error < -0.01 for error in both)
    [first] = [line for line in README.splitlines() if line.startswith("Convolutional networks")]
    assert f"of {len(both)} of their runs that others measured {low} are predicted too low" in first
    assert f"at worst by {-min(both):.0%}".replace("%", " %") in first
    ran = [run for run in load_public_runs() if run.set in errors and run.outcome == "ok"]
    assert "in all 24 runs" in TEXTS["workspace-read"] and len(ran) == 24
    assert all(run.prediction.allocated_bytes < run.measured_bytes for run in ran)
    nets, stacks = errors.values()
    told = TEXTS["workspace-read"]
    assert "All seven" in told and len(stacks) == 7
    assert f"{-max(stacks):.0%} to {-min(stacks):.0%}".replace("%", "").replace(
        " to", " to"
    ) in told.replace(" %", "")
    far = sorted(-error for error in nets if error < -0.1)
    assert "three are 12 to 17 % too low" in told and len(far) == 3
    assert [round(100 * far[0]), round(100 * far[-1])] == [12, 17]
    assert sum(error > 0 for error in nets) > len(nets) / 2 and round(100 * max(nets)) == 10


def test_a_video_s_tokens_are_wan_s():
    diffusers = pytest.importorskip("diffusers")
    patch = inspect.signature(diffusers.WanTransformer3DModel.__init__).parameters["patch_size"]
    vae = inspect.signature(diffusers.AutoencoderKLWan.__init__).parameters
    frames, side = (vae[f"scale_factor_{name}"].default for name in ("temporal", "spatial"))
    assert (patch.default, frames, side) == ((1, 2, 2), 4, 8)
    by_them = ((81 - 1) // frames + 1) * (480 // side // 2) * (832 // side // 2)
    assert lesson()["tokens_of"](480, 832, 81) == by_them


def test_two_ways_to_keep_a_mean_are_right():
    assert [check("12.1", answer).status for answer in ALSO_RIGHT] == ["right"] * 2
