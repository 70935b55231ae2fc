"""Language models of Hugging Face and two adapters, as people train them: masks, checkpointing, kernels, LoRA."""

import functools

import peft
import torch
import transformers as hf
from training_loop import training
from zoo.programs import MEASURE, Program

VOCAB, TOKENS, PADDED = 512, 32, 8
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "max_position_embeddings": 66,
}
GROUPED = SIZES | {"num_key_value_heads": 2}
NEEDS = "needs the values of a tensor"


def learning(
    model,
    config,
    *,
    mask="",
    checkpointing=None,
    optimizer=torch.optim.AdamW,
    adapts=None,
    autocast=False,
    **inputs,
):
    """A training loop around the model, with a mask of ones, one that pads, or none."""

    def build(device):
        net = model(config()).to(device).train()
        if checkpointing is not None:
            net.gradient_checkpointing_enable(gradient_checkpointing_kwargs=checkpointing)
        net = adapts(net) if adapts else net
        tokens = torch.randint(0, VOCAB, (2, TOKENS), device=device)
        batch = {"input_ids": tokens, "labels": tokens} | inputs
        if mask == "ones":
            batch["attention_mask"] = torch.ones_like(tokens)
        elif mask:
            rows = [[1] * TOKENS, [1] * (TOKENS - PADDED) + [0] * PADDED]
            batch["attention_mask"] = torch.tensor(rows, device=device)

        def loss():
            with torch.autocast(device, torch.bfloat16, enabled=autocast):
                return net(**batch).loss

        return training(net, loss, optimizer)

    return build


def configured(kind, attention=None, **sizes):
    def make():
        config = kind(**sizes)
        if attention:
            config._attn_implementation = attention
        return config

    return make


def lora(net):
    return peft.get_peft_model(
        net, peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.05)
    )


def ia3(net):
    return peft.get_peft_model(
        net, peft.IA3Config(target_modules=["v_proj"], feedforward_modules=[])
    )


def llama(name, attention=None, refused=None, **choices):
    config = configured(hf.LlamaConfig, attention, **GROUPED)
    build = learning(hf.LlamaForCausalLM, config, **choices)
    return Program(name=f"Llama{name}", build=build, refused=refused or {})


GPT2 = {"vocab_size": VOCAB, "n_embd": 128, "n_layer": 2, "n_head": 4, "n_positions": 64}
T5 = {
    "vocab_size": VOCAB,
    "d_model": 128,
    "num_layers": 2,
    "num_heads": 4,
    "d_ff": 256,
    "d_kv": 32,
    "decoder_start_token_id": 0,
}
BART = {
    "vocab_size": VOCAB,
    "d_model": 128,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 256,
    "decoder_ffn_dim": 256,
    "max_position_embeddings": 64,
}
MOE = GROUPED | {
    "head_dim": 32,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
}
NO_FLEX = {
    "cuda": "does not follow flex_attention",
    "cpu": "does not support backward on CPU",
    "measured": "does not support backward on CPU",
}

PROGRAMS = [
    llama(""),
    llama(", a mask of ones", mask="ones"),
    llama(", a padding mask", mask="pads"),
    llama(", use_cache=False", use_cache=False),
    llama(", gradient checkpointing", mask="ones", checkpointing={}),
    llama(", reentrant checkpointing", checkpointing={"use_reentrant": True}),
    llama(", eager attention", "eager", mask="pads"),
    llama(", autocast", mask="ones", autocast=True),
    llama(" with LoRA", mask="ones", adapts=lora),
    llama(" with IA3", adapts=ia3),
    llama(", FlexAttention", "flex_attention", NO_FLEX),
    llama(
        ", Adafactor of transformers",
        optimizer=functools.partial(hf.Adafactor, lr=None),
        refused={"cuda": NEEDS, "cpu": NEEDS},
    ),
    *(
        Program(
            name=name,
            build=learning(model, configured(config, attention, **sizes), mask=mask),
            warns=MEASURE if name == "Mamba" else "",
        )
        for name, model, config, sizes, mask, attention in (
            (
                "Mixtral",
                hf.MixtralForCausalLM,
                hf.MixtralConfig,
                GROUPED | {"num_local_experts": 4},
                "ones",
                None,
            ),
            ("Qwen2", hf.Qwen2ForCausalLM, hf.Qwen2Config, GROUPED, "ones", None),
            (
                "Qwen3",
                hf.Qwen3ForCausalLM,
                hf.Qwen3Config,
                GROUPED | {"head_dim": 32},
                "pads",
                None,
            ),
            ("Qwen3 MoE", hf.Qwen3MoeForCausalLM, hf.Qwen3MoeConfig, MOE, "", None),
            (
                "Mistral",
                hf.MistralForCausalLM,
                hf.MistralConfig,
                GROUPED | {"sliding_window": 16},
                "ones",
                None,
            ),
            (
                "Gemma 2",
                hf.Gemma2ForCausalLM,
                hf.Gemma2Config,
                GROUPED | {"head_dim": 32, "sliding_window": 16},
                "",
                None,
            ),
            ("Phi-3", hf.Phi3ForCausalLM, hf.Phi3Config, GROUPED | {"pad_token_id": 0}, "", None),
            ("GPT-2", hf.GPT2LMHeadModel, hf.GPT2Config, GPT2, "", None),
            ("GPT-2, eager attention", hf.GPT2LMHeadModel, hf.GPT2Config, GPT2, "", "eager"),
            ("GPT-NeoX", hf.GPTNeoXForCausalLM, hf.GPTNeoXConfig, SIZES, "", None),
            ("BERT", hf.BertForMaskedLM, hf.BertConfig, SIZES, "pads", None),
            ("RoBERTa", hf.RobertaForMaskedLM, hf.RobertaConfig, SIZES, "pads", None),
            ("T5", hf.T5ForConditionalGeneration, hf.T5Config, T5, "ones", None),
            ("BART", hf.BartForConditionalGeneration, hf.BartConfig, BART, "ones", None),
            (
                "Mamba",
                hf.MambaForCausalLM,
                hf.MambaConfig,
                {"vocab_size": VOCAB, "hidden_size": 64, "num_hidden_layers": 2, "state_size": 8},
                "",
                None,
            ),
        )
    ),
]
