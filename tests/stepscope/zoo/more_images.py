"""Image models of torchvision and timm."""

import functools

import timm
from torchvision import models
from zoo.images import CLASSES, SIDE, classifier
from zoo.programs import MEASURE, Program

of_timm = functools.partial(timm.create_model, num_classes=CLASSES, drop_path_rate=0.1)
PROGRAMS = [
    Program(name=name, build=classifier(make, names_inputs=False), warns=MEASURE)
    for name, make in (
        ("torchvision ResNet-50", functools.partial(models.resnet50, num_classes=CLASSES)),
        (
            "torchvision ViT",
            lambda: models.VisionTransformer(SIDE, 16, 2, 4, 128, 256, num_classes=CLASSES),
        ),
        (
            "torchvision Swin",
            lambda: models.SwinTransformer([4, 4], 32, [1, 1], [2, 4], [4, 4], num_classes=CLASSES),
        ),
        ("timm ViT", functools.partial(of_timm, "vit_tiny_patch16_224", img_size=SIDE, depth=2)),
        ("timm ConvNeXt", functools.partial(of_timm, "convnext_atto", depths=(1, 1, 1, 1))),
    )
]
