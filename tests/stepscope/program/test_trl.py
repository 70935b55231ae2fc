"""TRL's fine-tuning with adapters, run for real on a tiny Llama, and the defaults that the book names."""

import os

import pytest

from memkit.models import llama_config
from stepscope.formula import count_adapter_parameters
from stepscope.setup import AdapterConfig

os.environ["HF_HUB_OFFLINE"] = "1"
TOKENS = {"<pad>": 0, "<eos>": 1, "a": 2, "b": 3}


def test_sft_trainer_trains_the_adapters_and_recomputes_by_default(tmp_path):
    """Two steps; as many parameters as the formula says; blocks are checkpointed unless one says otherwise."""
    trl, peft, datasets = (pytest.importorskip(name) for name in ("trl", "peft", "datasets"))
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(TOKENS, unk_token="a"))
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<eos>"
    )
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=172,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        pad_token_id=0,
    )
    arguments = trl.SFTConfig(
        output_dir=str(tmp_path),
        max_steps=2,
        per_device_train_batch_size=2,
        report_to=[],
        use_cpu=True,
        optim="adamw_torch",
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = trl.SFTTrainer(
        model=transformers.LlamaForCausalLM(config),
        args=arguments,
        processing_class=tokenizer,
        train_dataset=datasets.Dataset.from_dict({"input_ids": [[2, 3, 2, 3, 1]] * 8}),
        peft_config=peft.LoraConfig(
            r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"
        ),
    )
    assert trainer.train().global_step == 2
    assert trainer.model.base_model.model.is_gradient_checkpointing
    assert (arguments.gradient_checkpointing, arguments.max_length, arguments.packing) == (
        True,
        1024,
        False,
    )
    trained = sum(p.numel() for p in trainer.model.parameters() if p.requires_grad)
    model = llama_config("tiny", 2, 64, 4, 2, 172, 64, 256)
    assert trained == count_adapter_parameters(
        model, AdapterConfig(rank=4, targets=("query", "value"))
    )
