"""The program of PEFT's method comparison on FLUX.2-klein-base-4B, in our own words, for ``trace_script``.

Two images of 512 × 512, whose latents and prompts were computed before: they and DINOv2, which judges images between,
stand on the card beside the transformer; text encoder and autoencoder are in the host's memory. Weights are bf16,
adapters float32, each block is recomputed, gradients live until the next step. The allocator's cache is emptied before
the first step and after every hundredth, when images are judged: here before the third of four. Nothing is fitted.

Sources: github.com/huggingface/peft at 5d602fd, method_comparison/image-gen (run.py, utils.py); the transformer's sizes
from github.com/huggingface/diffusers at 58eb52c, scripts/convert_flux2_to_diffusers.py (klein-4b), which give the
3,875,544,576 parameters of the published results. Nothing is copied.
"""

import dataclasses
import json
from collections.abc import Callable

import torch

from dev.bench.peft_programs import L40S, optimizer_of
from dev.bench.public_programs import with_torchvision_operators
from memkit.fit import workspace_bytes
from stepscope import trace_script
from stepscope.allocator.caching import CachingAllocator
from stepscope.allocator.replay import Player

MODEL = "black-forest-labs/FLUX.2-klein-base-4B"
KLEIN_4B = {
    "patch_size": 1,
    "in_channels": 128,
    "num_layers": 5,
    "num_single_layers": 20,
    "attention_head_dim": 128,
    "num_attention_heads": 24,
    "joint_attention_dim": 7680,
    "timestep_guidance_channels": 256,
    "mlp_ratio": 3.0,
    "axes_dims_rope": (32, 32, 32, 32),
    "rope_theta": 2000,
    "eps": 1e-6,
    "guidance_embeds": False,
}
IMAGES, PROMPT_TOKENS, CHANNELS, SIDE = 14, 512, 128, 32
"""Images to learn from (20, less 2 and 4 to judge by), tokens of a prompt, channels and side of a latent."""
DINO_V2_BASE = 86_580_480
"""Parameters of facebook/dinov2-base, float32."""
STEPS, EMPTIED_BEFORE = 4, (1, 3)


def build(train: dict, adapter: dict | None) -> Callable:
    """The benchmark's steps."""
    with_torchvision_operators()
    import peft
    from diffusers import Flux2Transformer2DModel

    def given(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device="cpu").to("cuda")

    def make():
        transformer = Flux2Transformer2DModel(**KLEIN_4B).to(torch.bfloat16).to("cuda")
        transformer.enable_gradient_checkpointing()
        if adapter:
            of_type = peft.PEFT_TYPE_TO_CONFIG_MAPPING[adapter["peft_type"]]
            known = {field.name for field in dataclasses.fields(of_type)}
            transformer = peft.get_peft_model(
                transformer, of_type(**{k: v for k, v in adapter.items() if k in known})
            )
        transformer.train()
        optimizer, batch = optimizer_of(transformer, train), train["batch_size"]
        prompts = given(
            IMAGES, PROMPT_TOKENS, KLEIN_4B["joint_attention_dim"], dtype=torch.bfloat16
        )
        places = given(IMAGES, PROMPT_TOKENS, 4)
        images = given(IMAGES, CHANNELS, SIDE, SIDE, dtype=torch.bfloat16)
        judge = given(DINO_V2_BASE, dtype=torch.float32)
        alive = {"kept": (judge, given(IMAGES * train["repeats"])), "losses": []}

        def step():
            alive["drawn"] = drawn = given(batch)
            alive["latents"] = latents = images.index_select(0, drawn)
            alive["prompts"], alive["places"] = (
                prompts.index_select(0, drawn),
                places.index_select(0, drawn),
            )
            alive["image places"] = given(batch, SIDE * SIDE, 4)
            alive["noise"] = noise = torch.randn_like(latents)
            alive["times"] = given(batch, dtype=torch.float32)
            alive["sigmas"] = sigmas = given(batch, 1, 1, 1, dtype=torch.bfloat16)
            alive["noisy"] = (1.0 - sigmas) * latents + sigmas * noise
            optimizer.zero_grad(set_to_none=True)
            guess = transformer(
                hidden_states=alive["noisy"].reshape(batch, CHANNELS, -1).permute(0, 2, 1),
                guidance=None,
                timestep=alive["times"] / 1000,
                encoder_hidden_states=alive["prompts"],
                txt_ids=alive["places"],
                img_ids=alive["image places"],
                return_dict=False,
            )[0]
            alive["guess"] = guess = torch.stack([in_place(tokens) for tokens in guess])
            alive["weight"], alive["target"] = torch.ones_like(sigmas), noise - latents
            error = alive["weight"].float() * (guess.float() - alive["target"].float()) ** 2
            loss = torch.mean(error.reshape(batch, -1), 1).mean()
            del error
            loss.backward()
            torch.nn.utils.clip_grad_norm_(transformer.parameters(), train["grad_norm_clip"])
            optimizer.step()
            alive["losses"].append(loss.detach())

        return step

    return make


def in_place(tokens: torch.Tensor) -> torch.Tensor:
    """The tokens of an image where their places say."""
    out = torch.zeros_like(tokens)
    where = torch.zeros(len(tokens), dtype=torch.int64, device="cuda")
    out.scatter_(0, where.unsqueeze(1).expand_as(tokens), tokens)
    return out.view(SIDE, SIDE, CHANNELS).permute(2, 0, 1)


def reserved_bytes(row: dict[str, str]) -> int:
    """The greatest reserved bytes of a row's steps; what building the model takes is gone before them."""
    adapter = json.loads(row["peft_config"]) if row["peft_config"] else None
    trace = trace_script(build(json.loads(row["train_config"]), adapter), steps=STEPS)
    allocator, step = CachingAllocator(), None
    player = Player(allocator, workspace_bytes(L40S))
    for event in trace.events:
        if event.phase != "init" and event.step != step:
            step = event.step
            if step in EMPTIED_BEFORE:
                allocator.empty_cache()
            if step == 1:
                allocator.reset_peak()
        player.play(event)
    return allocator.peak["reserved"]
