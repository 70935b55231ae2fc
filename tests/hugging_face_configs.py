"""config.json of published models, the keys that fix shapes, with the parameters that their model cards count."""

SHARED = (
    "num_hidden_layers",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
    "max_position_embeddings",
    "tie_word_embeddings",
)


def published(
    parameters: int, architecture: str, model_type: str, shared: tuple[int | None, ...], **own
) -> tuple[dict, int]:
    """A configuration and its parameters: the values of ``SHARED`` in order (``None``: it has none), and others."""
    values = {name: value for name, value in zip(SHARED, shared, strict=False) if value is not None}
    return {"architectures": [architecture], "model_type": model_type} | values | own, parameters


CONFIGS = {
    "gpt2": published(
        124_439_808,
        "GPT2LMHeadModel",
        "gpt2",
        (None, None, None, None, None, 50257),
        n_layer=12,
        n_embd=768,
        n_head=12,
        n_positions=1024,
    ),
    "Llama-2-7b": published(
        6_738_415_616, "LlamaForCausalLM", "llama", (32, 4096, 11008, 32, 32, 32000, 4096, False)
    ),
    "Llama-3.1-8B": published(
        8_030_261_248, "LlamaForCausalLM", "llama", (32, 4096, 14336, 32, 8, 128256, 131072, False)
    ),
    "Llama-3.2-1B": published(
        1_235_814_400,
        "LlamaForCausalLM",
        "llama",
        (16, 2048, 8192, 32, 8, 128256, 131072, True),
        head_dim=64,
    ),
    "Mistral-7B-v0.1": published(
        7_241_732_096,
        "MistralForCausalLM",
        "mistral",
        (32, 4096, 14336, 32, 8, 32000, 32768, False),
        sliding_window=4096,
    ),
    "Qwen2.5-0.5B": published(
        494_032_768, "Qwen2ForCausalLM", "qwen2", (24, 896, 4864, 14, 2, 151936, 32768, True)
    ),
    "Qwen2.5-7B": published(
        7_615_616_512, "Qwen2ForCausalLM", "qwen2", (28, 3584, 18944, 28, 4, 152064, 131072, False)
    ),
    "Qwen3-0.6B": published(
        596_049_920,
        "Qwen3ForCausalLM",
        "qwen3",
        (28, 1024, 3072, 16, 8, 151936, 40960, True),
        head_dim=128,
    ),
    "Qwen3-8B": published(
        8_190_735_360,
        "Qwen3ForCausalLM",
        "qwen3",
        (36, 4096, 12288, 32, 8, 151936, 40960, False),
        head_dim=128,
    ),
    "Qwen3-32B": published(
        32_762_123_264,
        "Qwen3ForCausalLM",
        "qwen3",
        (64, 5120, 25600, 64, 8, 151936, 40960, False),
        head_dim=128,
    ),
    "Qwen3-30B-A3B": published(
        30_532_122_624,
        "Qwen3MoeForCausalLM",
        "qwen3_moe",
        (48, 2048, 6144, 32, 4, 151936, 40960, False),
        head_dim=128,
        num_experts=128,
        num_experts_per_tok=8,
        moe_intermediate_size=768,
        norm_topk_prob=True,
        mlp_only_layers=[],
        decoder_sparse_step=1,
    ),
    "gpt-oss-20b": published(
        20_914_757_184,
        "GptOssForCausalLM",
        "gpt_oss",
        (24, 2880, 2880, 64, 8, 201088, 131072, False),
        head_dim=64,
        num_local_experts=32,
        num_experts_per_tok=4,
        swiglu_limit=7.0,
        attention_bias=True,
        sliding_window=128,
    ),
    "gemma-2b": published(
        2_506_172_416,
        "GemmaForCausalLM",
        "gemma",
        (18, 2048, 16384, 8, 1, 256000, 8192, True),
        head_dim=256,
    ),
    "gemma-2-2b": published(
        2_614_341_888,
        "Gemma2ForCausalLM",
        "gemma2",
        (26, 2304, 9216, 8, 4, 256000, 8192, True),
        head_dim=256,
    ),
    "gemma-3-1b": published(
        999_885_952,
        "Gemma3ForCausalLM",
        "gemma3_text",
        (26, 1152, 6912, 4, 1, 262144, 32768, True),
        head_dim=256,
    ),
    "phi-2": published(
        2_779_683_840,
        "PhiForCausalLM",
        "phi",
        (32, 2560, 10240, 32, None, 51200, 2048, False),
        partial_rotary_factor=0.4,
    ),
    "Phi-3-mini-4k": published(
        3_821_079_552, "Phi3ForCausalLM", "phi3", (32, 3072, 8192, 32, 32, 32064, 4096, False)
    ),
    "bert-base-uncased": published(
        109_514_298, "BertForMaskedLM", "bert", (12, 768, 3072, 12, None, 30522, 512)
    ),
    "roberta-base": published(
        124_697_433,
        "RobertaForMaskedLM",
        "roberta",
        (12, 768, 3072, 12, None, 50265, 514),
        type_vocab_size=1,
    ),
    "t5-small": published(
        60_506_624,
        "T5ForConditionalGeneration",
        "t5",
        (None, None, None, None, None, 32128),
        num_layers=6,
        d_model=512,
        d_ff=2048,
        d_kv=64,
        num_heads=8,
        decoder_start_token_id=0,
        pad_token_id=0,
    ),
    "vit-base-patch16-224": published(
        86_567_656,
        "ViTForImageClassification",
        "vit",
        (12, 768, 3072, 12),
        image_size=224,
        patch_size=16,
        num_labels=1000,
    ),
    "Mixtral-8x7B": published(
        46_702_792_704,
        "MixtralForCausalLM",
        "mixtral",
        (32, 4096, 14336, 32, 8, 32000, 32768, False),
        num_local_experts=8,
        num_experts_per_tok=2,
    ),
    "DeepSeek-V2-Lite": published(
        15_706_484_224,
        "DeepseekV2ForCausalLM",
        "deepseek_v2",
        (27, 2048, 10944, 16, 16, 102400, 163840, False),
        q_lora_rank=None,
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
        n_routed_experts=64,
        n_shared_experts=2,
        num_experts_per_tok=6,
        moe_intermediate_size=1408,
        first_k_dense_replace=1,
        topk_method="greedy",
        n_group=1,
        topk_group=1,
    ),
    "falcon-7b": published(
        6_921_720_704,
        "FalconForCausalLM",
        "falcon",
        (32, 4544, None, 71, None, 65024),
        new_decoder_architecture=False,
        multi_query=True,
        parallel_attn=True,
        bias=False,
        alibi=False,
    ),
    "bloom-560m": published(
        559_214_592,
        "BloomForCausalLM",
        "bloom",
        (None, 1024, None, None, None, 250880),
        n_layer=24,
        n_head=16,
    ),
    "opt-125m": published(
        125_239_296,
        "OPTForCausalLM",
        "opt",
        (12, 768, None, 12, None, 50272, 2048),
        ffn_dim=3072,
        word_embed_proj_dim=768,
    ),
    "pythia-160m": published(
        162_322_944, "GPTNeoXForCausalLM", "gpt_neox", (12, 768, 3072, 12, None, 50304, 2048, False)
    ),
    "starcoder2-3b": published(
        3_030_371_328,
        "Starcoder2ForCausalLM",
        "starcoder2",
        (30, 3072, 12288, 24, 2, 49152, 16384, True),
    ),
}
"""By name: the configuration, and the number of parameters."""
