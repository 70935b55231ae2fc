"""config.json of published models, the keys that fix shapes, with the parameters that their model cards count."""

CONFIGS = {
    "gpt2": (
        {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_layer": 12, "n_embd": 768,
         "n_head": 12, "vocab_size": 50257, "n_positions": 1024},
        124_439_808,
    ),
    "Llama-2-7b": (
        {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 32,
         "hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32,
         "num_key_value_heads": 32, "vocab_size": 32000, "max_position_embeddings": 4096,
         "tie_word_embeddings": False},
        6_738_415_616,
    ),
    "Llama-3.1-8B": (
        {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 32,
         "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
         "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
         "tie_word_embeddings": False},
        8_030_261_248,
    ),
    "Llama-3.2-1B": (
        {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 16,
         "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32,
         "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256, "max_position_embeddings":
         131072, "tie_word_embeddings": True},
        1_235_814_400,
    ),
    "Mistral-7B-v0.1": (
        {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "num_hidden_layers": 32,
         "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
         "num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 32768,
         "sliding_window": 4096, "tie_word_embeddings": False},
        7_241_732_096,
    ),
    "Qwen2.5-0.5B": (
        {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "num_hidden_layers": 24,
         "hidden_size": 896, "intermediate_size": 4864, "num_attention_heads": 14,
         "num_key_value_heads": 2, "vocab_size": 151936, "max_position_embeddings": 32768,
         "tie_word_embeddings": True},
        494_032_768,
    ),
    "Qwen2.5-7B": (
        {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "num_hidden_layers": 28,
         "hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28,
         "num_key_value_heads": 4, "vocab_size": 152064, "max_position_embeddings": 131072,
         "tie_word_embeddings": False},
        7_615_616_512,
    ),
    "Qwen3-0.6B": (
        {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_hidden_layers": 28,
         "hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16,
         "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "max_position_embeddings":
         40960, "tie_word_embeddings": True},
        596_049_920,
    ),
    "gemma-2b": (
        {"architectures": ["GemmaForCausalLM"], "model_type": "gemma", "num_hidden_layers": 18,
         "hidden_size": 2048, "intermediate_size": 16384, "num_attention_heads": 8,
         "num_key_value_heads": 1, "head_dim": 256, "vocab_size": 256000, "max_position_embeddings":
         8192, "tie_word_embeddings": True},
        2_506_172_416,
    ),
    "gemma-2-2b": (
        {"architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "num_hidden_layers": 26,
         "hidden_size": 2304, "intermediate_size": 9216, "num_attention_heads": 8,
         "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 256000, "max_position_embeddings":
         8192, "tie_word_embeddings": True},
        2_614_341_888,
    ),
    "gemma-3-1b": (
        {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "num_hidden_layers": 26,
         "hidden_size": 1152, "intermediate_size": 6912, "num_attention_heads": 4,
         "num_key_value_heads": 1, "head_dim": 256, "vocab_size": 262144, "max_position_embeddings":
         32768, "tie_word_embeddings": True},
        999_885_952,
    ),
    "phi-2": (
        {"architectures": ["PhiForCausalLM"], "model_type": "phi", "num_hidden_layers": 32,
         "hidden_size": 2560, "intermediate_size": 10240, "num_attention_heads": 32, "vocab_size":
         51200, "max_position_embeddings": 2048, "partial_rotary_factor": 0.4, "tie_word_embeddings":
         False},
        2_779_683_840,
    ),
    "Phi-3-mini-4k": (
        {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "num_hidden_layers": 32,
         "hidden_size": 3072, "intermediate_size": 8192, "num_attention_heads": 32,
         "num_key_value_heads": 32, "vocab_size": 32064, "max_position_embeddings": 4096,
         "tie_word_embeddings": False},
        3_821_079_552,
    ),
    "bert-base-uncased": (
        {"architectures": ["BertForMaskedLM"], "model_type": "bert", "num_hidden_layers": 12,
         "hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12, "vocab_size": 30522,
         "max_position_embeddings": 512},
        109_514_298,
    ),
    "roberta-base": (
        {"architectures": ["RobertaForMaskedLM"], "model_type": "roberta", "num_hidden_layers": 12,
         "hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12, "vocab_size": 50265,
         "max_position_embeddings": 514, "type_vocab_size": 1},
        124_697_433,
    ),
    "t5-small": (
        {"architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "num_layers": 6,
         "d_model": 512, "d_ff": 2048, "d_kv": 64, "num_heads": 8, "vocab_size": 32128,
         "decoder_start_token_id": 0, "pad_token_id": 0},
        60_506_624,
    ),
    "vit-base-patch16-224": (
        {"architectures": ["ViTForImageClassification"], "model_type": "vit", "num_hidden_layers": 12,
         "hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12, "image_size": 224,
         "patch_size": 16, "num_labels": 1000},
        86_567_656,
    ),
    "Mixtral-8x7B": (
        {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_hidden_layers": 32,
         "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
         "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size":
         32000, "max_position_embeddings": 32768, "tie_word_embeddings": False},
        46_702_792_704,
    ),
    "DeepSeek-V2-Lite": (
        {"architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "num_hidden_layers":
         27, "hidden_size": 2048, "intermediate_size": 10944, "num_attention_heads": 16,
         "num_key_value_heads": 16, "q_lora_rank": None, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
         "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 64, "n_shared_experts": 2,
         "num_experts_per_tok": 6, "moe_intermediate_size": 1408, "first_k_dense_replace": 1,
         "vocab_size": 102400, "max_position_embeddings": 163840, "topk_method": "greedy", "n_group": 1,
         "topk_group": 1, "tie_word_embeddings": False},
        15_706_484_224,
    ),
    "falcon-7b": (
        {"architectures": ["FalconForCausalLM"], "model_type": "falcon", "num_hidden_layers": 32,
         "hidden_size": 4544, "num_attention_heads": 71, "vocab_size": 65024,
         "new_decoder_architecture": False, "multi_query": True, "parallel_attn": True, "bias": False,
         "alibi": False},
        6_921_720_704,
    ),
    "bloom-560m": (
        {"architectures": ["BloomForCausalLM"], "model_type": "bloom", "n_layer": 24, "hidden_size":
         1024, "n_head": 16, "vocab_size": 250880},
        559_214_592,
    ),
    "opt-125m": (
        {"architectures": ["OPTForCausalLM"], "model_type": "opt", "num_hidden_layers": 12,
         "hidden_size": 768, "ffn_dim": 3072, "num_attention_heads": 12, "vocab_size": 50272,
         "max_position_embeddings": 2048, "word_embed_proj_dim": 768},
        125_239_296,
    ),
    "pythia-160m": (
        {"architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox", "num_hidden_layers": 12,
         "hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12, "vocab_size": 50304,
         "max_position_embeddings": 2048, "tie_word_embeddings": False},
        162_322_944,
    ),
    "starcoder2-3b": (
        {"architectures": ["Starcoder2ForCausalLM"], "model_type": "starcoder2", "num_hidden_layers":
         30, "hidden_size": 3072, "intermediate_size": 12288, "num_attention_heads": 24,
         "num_key_value_heads": 2, "vocab_size": 49152, "max_position_embeddings": 16384,
         "tie_word_embeddings": True},
        3_030_371_328,
    ),
}  # fmt: skip
"""By name: the configuration, and the number of parameters."""
