"""Models known by config.json alone: transformers' modules and published counts are the oracle."""

import json
from dataclasses import replace

import pytest
import torch

pytest.importorskip("transformers", reason="the extra zoo")

from hugging_face_configs import CONFIGS

from memkit.formula.parameters import count_parameters
from memkit.measure import measure_memory
from memkit.models import PUBLISHED_MODELS
from memkit.units import round_up
from stepscope.hugging_face import FAMILIES, model_of_config, read_config
from stepscope.program.hugging_face import hugging_face_build, hugging_face_model
from stepscope.tracing.trace import trace_script

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 3,
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 4096,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_are_those_that_the_model_card_counts(name):
    config, published = CONFIGS[name]
    with torch.device("meta"):
        assert sum(p.numel() for p in hugging_face_model(config).parameters()) == published


LAYERS = (
    "num_hidden_layers",
    "n_layer",
    "num_layers",
    "num_decoder_layers",
    "first_k_dense_replace",
)


@pytest.mark.parametrize("name", CONFIGS)
def test_traced_from_the_configuration_alone(name):
    config = {
        key: min(2, value) if key in LAYERS and value else value
        for key, value in CONFIGS[name][0].items()
    }
    config.pop("layer_types", None)
    trace = trace_script(hugging_face_build(config, seq_len=128))
    with torch.device("meta"):
        model = hugging_face_model(config, "bfloat16")
    init, states = trace.at("init"), trace.at("optimizer").optimizer_states
    tensors = {id(t): t for t in (*model.parameters(), *model.buffers())}
    in_blocks = sum(round_up(t.nbytes) for t in tensors.values())
    assert init.weights == pytest.approx(in_blocks, rel=1e-3)
    assert states >= 4 * sum(p.numel() for p in model.parameters())
    assert trace.peak_bytes >= init.weights + states


def test_traced_as_measured():
    build = hugging_face_build(LLAMA, micro_batch_size=2, seq_len=64, dtype="float32", device="cpu")
    measured = measure_memory(build, device="cpu").for_step(2)
    assert trace_script(build, device="cpu").for_step(2).peak_bytes == pytest.approx(
        measured.peak_bytes, rel=0.01
    )


@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_config_has_as_many_parameters_or_is_refused_in_words(name):
    config, published = CONFIGS[name]
    if config["model_type"] in FAMILIES:
        model = model_of_config(config)
        assert count_parameters(model) == published
        # a shape of ours that a config.json publishes is this one
        for ours in PUBLISHED_MODELS.values():
            if count_parameters(ours) == published:
                assert replace(model, name=ours.name, max_seq_len=ours.max_seq_len) == ours
    else:
        with pytest.raises(
            ValueError, match=f"model_type='{config['model_type']}' is no ModelConfig: .*Trace it"
        ):
            model_of_config(config)


def test_some_layers_of_a_mixture_may_be_dense():
    config = CONFIGS["Qwen3-30B-A3B"][0] | {
        "num_hidden_layers": 6,
        "decoder_sparse_step": 2,
        "mlp_only_layers": [3],
    }
    assert model_of_config(config).dense_layers == (0, 2, 3, 4)
    with torch.device("meta"):
        real = sum(p.numel() for p in hugging_face_model(config).parameters())
    assert count_parameters(model_of_config(config)) == real
    with pytest.raises(ValueError, match="does not divide chosen scores by their sum"):
        model_of_config(config | {"norm_topk_prob": False})


def test_a_folder_a_file_and_a_dictionary_are_the_same(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert (
        read_config(tmp_path)
        == read_config(tmp_path / "config.json")
        == read_config(LLAMA)
        == LLAMA
    )


@pytest.mark.parametrize(
    "config, words",
    [
        ("nowhere.json", "'nowhere.json' is no config.json"),
        ({}, "has no 'model_type'"),
        ([], "has no 'model_type'"),
        ({"model_type": "llama"}, "has no 'architectures'"),
        (
            LLAMA | {"architectures": ["SomeForCausalLM"]},
            "'SomeForCausalLM' of 'llama' is not part of transformers",
        ),
        (LLAMA | {"architectures": ["LlamaModel"]}, "has no loss"),
    ],
)
def test_what_is_no_model_is_refused(config, words):
    with pytest.raises((ValueError, TypeError), match=words):
        hugging_face_model(config)


def test_a_sequence_longer_than_the_positions_is_refused():
    with pytest.raises(ValueError, match="seq_len=1024 is above the configuration's 512 positions"):
        hugging_face_build(LLAMA, seq_len=1024)
    with pytest.raises(ValueError, match="no 'hidden_size'"):
        model_of_config({key: value for key, value in LLAMA.items() if key != "hidden_size"})


def test_a_model_of_few_positions_gets_as_many_tokens():
    config = {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "n_embd": 64,
        "n_layer": 1,
        "n_head": 4,
        "n_positions": 128,
        "vocab_size": 256,
    }
    peaks = [
        trace_script(hugging_face_build(config, seq_len=tokens)).peak_bytes
        for tokens in (None, 128)
    ]
    assert peaks[0] == peaks[1]


def test_a_trace_of_the_trainer_writes_no_checkpoint_and_deletes_none(tmp_path):
    """A run writes its own and deletes the oldest; a trace leaves the folder as it is."""
    transformers = pytest.importorskip("transformers")
    safetensors = pytest.importorskip("safetensors.torch")

    def files() -> list[str]:
        return sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))

    def train(device: str) -> None:
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA))
        rows = [
            {
                "input_ids": torch.ones(8, dtype=torch.long),
                "labels": torch.ones(8, dtype=torch.long),
            }
        ] * 8
        arguments = transformers.TrainingArguments(
            str(tmp_path),
            max_steps=2,
            save_steps=1,
            save_total_limit=1,
            report_to=[],
            use_cpu=device == "cpu",
        )
        trainer = transformers.Trainer(model, arguments, train_dataset=rows)
        trainer.train()
        trainer.save_model()
        safetensors.save_file(dict(model.named_buffers()), tmp_path / "more.safetensors")

    (tmp_path / "checkpoint-0").mkdir()
    trace_script(lambda: lambda: train("cuda"), steps=1)
    assert files() == ["checkpoint-0"]
    train("cpu")
    assert "checkpoint-0" not in files() and {"checkpoint-2", "model.safetensors"} <= {*files()}
