"""Image models of Hugging Face and diffusers' UNet. Their convolutions on a CPU are oneDNN's."""

import diffusers
import torch
import torch.nn.functional as F
import transformers as hf
from training_loop import training
from zoo.programs import MEASURE, Program

SIDE, CLASSES = 64, 10
BLOCKS = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 256,
}


def classifier(make, names_inputs=True):
    def build(device):
        net = make().to(device).train()
        images = torch.randn(2, 3, SIDE, SIDE, device=device)
        labels = torch.randint(0, CLASSES, (2,), device=device)
        if names_inputs:
            return training(net, lambda: net(pixel_values=images, labels=labels).loss)
        return training(net, lambda: F.cross_entropy(net(images), labels))

    return build


def vit():
    return hf.ViTForImageClassification(
        hf.ViTConfig(image_size=SIDE, patch_size=16, num_labels=CLASSES, **BLOCKS)
    )


def resnet():
    sizes = {
        "embedding_size": 16,
        "hidden_sizes": [16, 32],
        "depths": [1, 1],
        "layer_type": "basic",
    }
    return hf.ResNetForImageClassification(hf.ResNetConfig(num_labels=CLASSES, **sizes))


def swin():
    sizes = {
        "image_size": SIDE,
        "patch_size": 4,
        "embed_dim": 32,
        "depths": [1, 1],
        "num_heads": [2, 4],
    }
    return hf.SwinForImageClassification(hf.SwinConfig(window_size=4, num_labels=CLASSES, **sizes))


def convnext():
    sizes = {"hidden_sizes": [16, 32, 64, 64], "depths": [1, 1, 1, 1]}
    return hf.ConvNextForImageClassification(hf.ConvNextConfig(num_labels=CLASSES, **sizes))


def diffusion(device):
    net = diffusers.UNet2DConditionModel(
        sample_size=16,
        block_out_channels=(32, 64),
        layers_per_block=1,
        cross_attention_dim=32,
        attention_head_dim=8,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        norm_num_groups=8,
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    ).to(device)
    schedule = diffusers.DDPMScheduler(num_train_timesteps=100)

    def loss():
        images = torch.randn(2, 4, 16, 16, device=device)
        text = torch.randn(2, 7, 32, device=device)
        noise, times = torch.randn_like(images), torch.randint(0, 100, (2,), device=device)
        return F.mse_loss(net(schedule.add_noise(images, noise, times), times, text).sample, noise)

    return training(net, loss)


def segformer():
    sizes = {
        "num_encoder_blocks": 2,
        "depths": [1, 1],
        "hidden_sizes": [16, 32],
        "num_attention_heads": [1, 2],
    }
    sizes |= {"sr_ratios": [4, 2], "patch_sizes": [7, 3], "strides": [4, 2], "mlp_ratios": [2, 2]}
    return hf.SegformerForSemanticSegmentation(
        hf.SegformerConfig(num_labels=5, decoder_hidden_size=32, **sizes)
    )


def segmented(device):
    net = segformer().to(device).train()
    images = torch.randn(2, 3, SIDE, SIDE, device=device)
    labels = torch.randint(0, 5, (2, SIDE, SIDE), device=device)
    return training(net, lambda: net(pixel_values=images, labels=labels).loss)


def series(device):
    sizes = {
        "num_input_channels": 4,
        "context_length": 128,
        "prediction_length": 24,
        "patch_length": 8,
    }
    sizes |= {
        "patch_stride": 8,
        "d_model": 64,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "ffn_dim": 128,
    }
    net = hf.PatchTSTForPrediction(hf.PatchTSTConfig(**sizes)).to(device).train()
    past, future = torch.randn(16, 128, 4, device=device), torch.randn(16, 24, 4, device=device)
    return training(net, lambda: net(past_values=past, future_values=future).loss)


def flux(device):
    net = diffusers.FluxTransformer2DModel(
        patch_size=1,
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=4,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        axes_dims_rope=(4, 4, 8),
    ).to(device)
    places = {
        "txt_ids": torch.zeros(12, 3, device=device),
        "img_ids": torch.zeros(64, 3, device=device),
    }

    def loss():
        noise, times = torch.randn(2, 64, 16, device=device), torch.rand(2, device=device)
        text = {"encoder_hidden_states": torch.randn(2, 12, 32, device=device)}
        text |= {"pooled_projections": torch.randn(2, 32, device=device)}
        return F.mse_loss(net(hidden_states=noise, timestep=times, **text, **places).sample, noise)

    return training(net, loss)


PROGRAMS = [
    Program(name="ViT", build=classifier(vit), warns=MEASURE),
    Program(name="ResNet", build=classifier(resnet), warns=MEASURE),
    Program(name="Swin", build=classifier(swin), warns=MEASURE),
    Program(name="ConvNeXt", build=classifier(convnext), warns=MEASURE),
    Program(name="diffusers' UNet", build=diffusion, warns=MEASURE),
    Program(name="SegFormer", build=segmented, warns=MEASURE),
    Program(name="PatchTST", build=series, warns=MEASURE),
    Program(name="Flux", build=flux),
]
