# SPDX-License-Identifier: Apache-2.0
"""The zoo: tiny random models of transformers' architectures, with inputs for each.

An entry is one architecture: a real model class, the keywords of its own config class, and a
function that makes inputs. Those of catalogue.py have names alone: their sizes and inputs are made
by tiny.py. Weights come from transformers' own initialisation under a fixed seed.
They are spread wide (a standard deviation of 0.3, where that does not drown attention), so that
logits differ and a greedy generation does not repeat one token.

    make_checkpoint("llama", directory)                  writes config.json and model.safetensors
    load_local(directory, entry("llama"), "bfloat16")    the reference: eager PyTorch, on the CPU

`python tests/ghosts/zoo.py [NAME...]` proves all entries on the CPU alone: built, saved, loaded,
run, generated from.
"""

import inspect
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

# Read when PyTorch is loaded: threads that spin take the cores from those of djinnd.
os.environ.setdefault("GOMP_SPINCOUNT", "5000")

import catalogue
import tiny
import torch
import transformers
from transformers import PreTrainedConfig, PreTrainedModel

Inputs = dict[str, torch.Tensor]
Dtype = Literal["float32", "bfloat16"]
DTYPES: tuple[Dtype, ...] = ("float32", "bfloat16")
# One row, or three rows of different lengths; or one row, a prompt of so many tokens.
Variant = Literal["one", "batch", "5", "60", "300", "700"]
VARIANTS: tuple[Variant, ...] = ("one", "batch")
PROMPTS: tuple[Variant, ...] = ("5", "60", "300", "700")
LONG = frozenset(
    ("gpt2", "gpt_neox", "opt", "bloom", "llama", "mistral", "qwen2", "gemma2", "phi3", "mixtral")
)

NEW_TOKENS = 32
SEED = 20
VOCABULARY = 128
PAD, BOS, EOS, FIRST_WORD, IMAGE = 0, 1, 2, 3, 127
TOKENS = 11  # of a prompt
DECODER_TOKENS = 5  # of a forward pass through an encoder-decoder
IMAGE_SIZE, PATCH = 32, 8
MEL_BINS, FRAMES = 16, 60
SAMPLES = 800
GREEDY = {"max_new_tokens": NEW_TOKENS, "min_new_tokens": NEW_TOKENS, "do_sample": False}


@dataclass(frozen=True)
class Entry:
    """One architecture. Frozen, so that a test cannot change what the next one sees."""

    name: str
    family: str
    model: str  # the class that `auto` must give
    auto: str  # the class whose from_pretrained is called
    config: dict[str, Any]  # keywords of the model's config class
    make_inputs: Callable[[PreTrainedConfig, Variant], Inputs]
    generates: bool = False
    by_names: bool = False  # config holds what tiny.py does not find by itself

    @property
    def variants(self) -> tuple[Variant, ...]:
        return VARIANTS + PROMPTS if self.name in LONG else VARIANTS

    def forward_takes(self) -> frozenset[str]:
        forward = getattr(transformers, self.model).forward
        return frozenset(inspect.signature(forward).parameters)

    def inputs(self, config: PreTrainedConfig, variant: Variant) -> Inputs:
        """What generate() gets; the same bytes at every call."""
        return self.make_inputs(config, variant)

    def forward_inputs(self, config: PreTrainedConfig, variant: Variant) -> Inputs:
        """What a forward pass gets: an encoder-decoder also needs tokens for its decoder."""
        inputs = self.make_inputs(config, variant)
        if "decoder_input_ids" in self.forward_takes() and config.is_encoder_decoder:
            inputs["decoder_input_ids"] = words(rows_of(variant), DECODER_TOKENS, stream=2)
        return inputs


def rows_of(variant: Variant) -> int:
    return 3 if variant == "batch" else 1


def name_of(dtype: Dtype, variant: Variant) -> str:
    return f"{dtype}, {variant}"


def variant_of(name: str) -> Variant:
    (variant,) = [one for one in VARIANTS + PROMPTS if name.endswith(f", {one}")]
    return variant


# --- inputs ---------------------------------------------------------------------------------------


def generator(stream: int) -> torch.Generator:
    return torch.Generator().manual_seed(1000 * SEED + stream)


def words(rows: int, length: int, stream: int = 1, below: int = VOCABULARY) -> torch.Tensor:
    return torch.randint(FIRST_WORD, below, (rows, length), generator=generator(stream))


def noise(*sizes: int) -> torch.Tensor:
    return torch.randn(sizes, generator=generator(3))


def lengths(rows: int, longest: int) -> torch.Tensor:
    """The first row is full, each other is shorter than the one before: 11, 8, 5."""
    return torch.tensor([longest - 3 * row for row in range(rows)])


def padded(ids: torch.Tensor, side: Literal["left", "right"]) -> Inputs:
    """Rows of different lengths and their mask; one row alone comes without a mask."""
    rows, longest = ids.shape
    if rows == 1:
        return {"input_ids": ids}
    mask = (torch.arange(longest) < lengths(rows, longest)[:, None]).long()
    mask = mask.flip(1) if side == "left" else mask
    return {"input_ids": ids.masked_fill(mask == 0, PAD), "attention_mask": mask}


def prompt(_: PreTrainedConfig, variant: Variant) -> Inputs:
    tokens = int(variant) if variant in PROMPTS else TOKENS
    return padded(words(rows_of(variant), tokens), "left")


def text(_: PreTrainedConfig, variant: Variant) -> Inputs:
    return padded(words(rows_of(variant), TOKENS), "right")


def image(_: PreTrainedConfig, variant: Variant) -> Inputs:
    return {"pixel_values": noise(rows_of(variant), 3, IMAGE_SIZE, IMAGE_SIZE)}


def spectrogram(_: PreTrainedConfig, variant: Variant) -> Inputs:
    return {"input_features": noise(rows_of(variant), MEL_BINS, FRAMES)}


def waveform(_: PreTrainedConfig, variant: Variant) -> Inputs:
    rows = rows_of(variant)
    if rows == 1:
        return {"input_values": noise(rows, SAMPLES)}
    mask = (torch.arange(SAMPLES) < lengths(rows, SAMPLES)[:, None] - 100).long()
    return {"input_values": noise(rows, SAMPLES) * mask, "attention_mask": mask}


def text_and_image(config: PreTrainedConfig, variant: Variant) -> Inputs:
    return text(config, variant) | image(config, variant)


def caption_and_image(config: PreTrainedConfig, variant: Variant) -> Inputs:
    return prompt(config, variant) | image(config, variant)


def image_in_prompt(config: PreTrainedConfig, variant: Variant) -> Inputs:
    """The image's patches stand as so many image tokens before the last words."""
    rows, patches = rows_of(variant), (IMAGE_SIZE // PATCH) ** 2
    ids = words(rows, TOKENS + patches, below=IMAGE)
    inputs = padded(ids, "left")
    inputs["input_ids"][:, -patches - 2 : -2] = IMAGE
    return inputs | image(config, variant)


# --- sizes that many configs share ----------------------------------------------------------------

SPECIAL = {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS}
WIDE = {"initializer_range": 0.3}
VOCAB = {"vocab_size": VOCABULARY, "max_position_embeddings": 1024, **SPECIAL, **WIDE}
LAYERS = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
ENCODER = VOCAB | LAYERS | {"intermediate_size": 96}
UNTIED = {"tie_word_embeddings": False}
GROUPED = ENCODER | UNTIED | {"num_key_value_heads": 2}
HEAD_16 = {"head_dim": 16}
N_STYLE = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 1024, "vocab_size": VOCABULARY}
SEQ2SEQ = {
    **{"vocab_size": VOCABULARY, "d_model": 64, "max_position_embeddings": 128, "init_std": 0.1},
    **{"encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 96},
    **{"decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 96},
    **SPECIAL,
    **{"scale_embedding": True},
    **{"decoder_start_token_id": BOS, "forced_eos_token_id": None, "forced_bos_token_id": None},
}
SPREAD = {"init_std": 0.3, "scale_embedding": False}
PATCHES = WIDE | LAYERS | {"intermediate_size": 96, "image_size": IMAGE_SIZE, "patch_size": PATCH}
STAGES = {"num_labels": 7, "image_size": IMAGE_SIZE}
SPEECH = (
    WIDE
    | LAYERS
    | {
        **{"intermediate_size": 96, "vocab_size": 32, "num_conv_pos_embeddings": 8},
        **{"num_conv_pos_embedding_groups": 2, "conv_dim": (32, 32), "conv_kernel": (10, 3)},
        **{"conv_stride": (5, 2), "feat_extract_norm": "layer", "do_stable_layer_norm": True},
    }
)
STATE_SPACE = {"vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 2, **SPECIAL}
DRAWS_FREELY = {"vision_config": PATCHES, "text_config": ENCODER, "projection_dim": 32}

ENTRIES: list[Entry] = []


def add(name: str, family: str, model: str, config: dict[str, Any], **rest: Any) -> None:
    auto, make_inputs, generates = FAMILIES[family]
    defaults = {"auto": auto, "make_inputs": make_inputs, "generates": generates}
    ENTRIES.append(Entry(name, family, model, config=config, **(defaults | rest)))


FAMILIES: dict[str, tuple[str, Callable[[PreTrainedConfig, Variant], Inputs], bool]] = {
    "encoder": ("AutoModelForMaskedLM", text, False),
    "decoder": ("AutoModelForCausalLM", prompt, True),
    "experts": ("AutoModelForCausalLM", prompt, True),
    "encoder-decoder": ("AutoModelForSeq2SeqLM", text, True),
    "vision": ("AutoModelForImageClassification", image, False),
    "audio": ("AutoModelForCTC", waveform, False),
    "multimodal": ("AutoModel", text_and_image, False),
    "state space": ("AutoModelForCausalLM", prompt, True),
}

add("bert", "encoder", "BertForMaskedLM", ENCODER)
add("roberta", "encoder", "RobertaForMaskedLM", ENCODER)
add("xlm-roberta", "encoder", "XLMRobertaForMaskedLM", ENCODER)
add("camembert", "encoder", "CamembertModel", ENCODER, auto="AutoModel")
add("electra", "encoder", "ElectraForMaskedLM", ENCODER | {"embedding_size": 32})
add("albert", "encoder", "AlbertForMaskedLM", ENCODER | {"embedding_size": 32})
add("mpnet", "encoder", "MPNetModel", ENCODER, auto="AutoModel")
add("ernie", "encoder", "ErnieForMaskedLM", ENCODER)
add("roformer", "encoder", "RoFormerForMaskedLM", ENCODER | {"embedding_size": 64})
add(
    "distilbert",
    "encoder",
    "DistilBertForMaskedLM",
    VOCAB | {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 96},
)
add(
    "deberta-v2",
    "encoder",
    "DebertaV2ForMaskedLM",
    ENCODER
    | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8}
    | {"share_att_key": True, "norm_rel_ebd": "layer_norm", "position_biased_input": False},
)
add(
    "modernbert",
    "encoder",
    "ModernBertForMaskedLM",
    ENCODER | {"cls_token_id": BOS, "sep_token_id": EOS, "local_attention": 4},
)

add("gpt2", "decoder", "GPT2LMHeadModel", N_STYLE | SPECIAL | WIDE)
add("codegen", "decoder", "CodeGenForCausalLM", N_STYLE | SPECIAL | WIDE | {"rotary_dim": 8})
add("gptj", "decoder", "GPTJForCausalLM", N_STYLE | SPECIAL | WIDE | {"rotary_dim": 8})
add("gpt_bigcode", "decoder", "GPTBigCodeForCausalLM", N_STYLE | SPECIAL | WIDE)
add(
    "gpt_neo",
    "decoder",
    "GPTNeoForCausalLM",
    VOCAB
    | {"hidden_size": 64, "num_layers": 2, "num_heads": 4, "window_size": 8}
    | {"attention_types": [[["global", "local"], 1]]},
)
add("gpt_neox", "decoder", "GPTNeoXForCausalLM", ENCODER)
add("opt", "decoder", "OPTForCausalLM", ENCODER | {"ffn_dim": 96, "word_embed_proj_dim": 64})
add(
    "bloom",
    "decoder",
    "BloomForCausalLM",
    VOCAB | UNTIED | {"hidden_size": 64, "n_layer": 2, "n_head": 4},
)
add("llama", "decoder", "LlamaForCausalLM", GROUPED)
add("mistral", "decoder", "MistralForCausalLM", GROUPED | HEAD_16 | {"sliding_window": 16})
add("qwen2", "decoder", "Qwen2ForCausalLM", GROUPED | {"tie_word_embeddings": True})
add("qwen3", "decoder", "Qwen3ForCausalLM", GROUPED | HEAD_16)
add("gemma", "decoder", "GemmaForCausalLM", GROUPED | HEAD_16 | {"num_key_value_heads": 1})
add(
    "gemma2",
    "decoder",
    "Gemma2ForCausalLM",
    GROUPED | HEAD_16 | {"sliding_window": 16, "query_pre_attn_scalar": 16},
)
add(
    "gemma3",
    "decoder",
    "Gemma3ForCausalLM",
    GROUPED | HEAD_16 | {"sliding_window": 16, "query_pre_attn_scalar": 16},
)
add("phi", "decoder", "PhiForCausalLM", GROUPED)
add("phi3", "decoder", "Phi3ForCausalLM", GROUPED)
add(
    "falcon",
    "decoder",
    "FalconForCausalLM",
    ENCODER | {"new_decoder_architecture": True, "num_kv_heads": 2, "ffn_hidden_size": 96},
)
add("stablelm", "decoder", "StableLmForCausalLM", GROUPED)
add("olmo", "decoder", "OlmoForCausalLM", GROUPED)
add("olmo2", "decoder", "Olmo2ForCausalLM", GROUPED)
add("cohere", "decoder", "CohereForCausalLM", GROUPED | {"logit_scale": 1.0})
add("starcoder2", "decoder", "Starcoder2ForCausalLM", GROUPED | {"sliding_window": 16})
add("smollm3", "decoder", "SmolLM3ForCausalLM", GROUPED | {"no_rope_layer_interval": 2})
add("granite", "decoder", "GraniteForCausalLM", GROUPED | {"attention_multiplier": 0.25})
add("glm", "decoder", "GlmForCausalLM", GROUPED | HEAD_16)
add(
    "mpt",
    "decoder",
    "MptForCausalLM",
    {
        **{
            "vocab_size": VOCABULARY,
            "d_model": 64,
            "n_layers": 2,
            "n_heads": 4,
            "max_seq_len": 128,
        },
        **{"expansion_ratio": 2},
        **SPECIAL,
        **UNTIED,
        **WIDE,
    },
)

MOE = GROUPED | {"num_experts_per_tok": 2}
add(
    "mixtral",
    "experts",
    "MixtralForCausalLM",
    MOE | {"num_local_experts": 4},
)
add(
    "qwen2_moe",
    "experts",
    "Qwen2MoeForCausalLM",
    MOE | {"num_experts": 4, "moe_intermediate_size": 48, "shared_expert_intermediate_size": 48},
)
add(
    "qwen3_moe",
    "experts",
    "Qwen3MoeForCausalLM",
    MOE | HEAD_16 | {"num_experts": 4, "moe_intermediate_size": 48},
)
add("olmoe", "experts", "OlmoeForCausalLM", MOE | {"num_experts": 4})
add(
    "granitemoe",
    "experts",
    "GraniteMoeForCausalLM",
    MOE | {"num_local_experts": 4, "attention_multiplier": 0.25},
)

T5_SIZES = {
    **{"vocab_size": VOCABULARY, "d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2},
    **{"num_decoder_layers": 2, "num_heads": 4, "relative_attention_num_buckets": 8},
    **{"relative_attention_max_distance": 16, "decoder_start_token_id": PAD},
    **{"initializer_factor": 5.0},
    **SPECIAL,
}
add("t5", "encoder-decoder", "T5ForConditionalGeneration", T5_SIZES)
add(
    "t5-gated",
    "encoder-decoder",
    "T5ForConditionalGeneration",
    T5_SIZES | {"feed_forward_proj": "gated-gelu", "initializer_factor": 4.0},
)
add("bart", "encoder-decoder", "BartForConditionalGeneration", SEQ2SEQ | UNTIED)
add("mbart", "encoder-decoder", "MBartForConditionalGeneration", SEQ2SEQ | SPREAD)
add("marian", "encoder-decoder", "MarianMTModel", SEQ2SEQ | UNTIED)
add("pegasus", "encoder-decoder", "PegasusForConditionalGeneration", SEQ2SEQ | UNTIED)
add("blenderbot", "encoder-decoder", "BlenderbotForConditionalGeneration", SEQ2SEQ | SPREAD)
add("m2m_100", "encoder-decoder", "M2M100ForConditionalGeneration", SEQ2SEQ | UNTIED)

add("vit", "vision", "ViTForImageClassification", PATCHES)
add("deit", "vision", "DeiTForImageClassification", PATCHES)
add("dinov2", "vision", "Dinov2ForImageClassification", PATCHES | {"mlp_ratio": 2})
add(
    "beit",
    "vision",
    "BeitForImageClassification",
    PATCHES | {"use_relative_position_bias": True, "layer_scale_init_value": 1.0},
)
add(
    "swin",
    "vision",
    "SwinForImageClassification",
    STAGES
    | WIDE
    | {"patch_size": 2, "embed_dim": 16, "depths": (2, 2), "num_heads": (2, 4), "window_size": 4},
)
add(
    "convnext",
    "vision",
    "ConvNextForImageClassification",
    STAGES
    | WIDE
    | {"num_stages": 2, "hidden_sizes": (16, 32), "depths": (1, 2), "layer_scale_init_value": 1.0},
)
add(
    "resnet",
    "vision",
    "ResNetForImageClassification",
    {"num_labels": 7, "embedding_size": 16, "hidden_sizes": (16, 32), "depths": (1, 2)},
)
add(
    "segformer",
    "vision",
    "SegformerForSemanticSegmentation",
    {
        **{"num_labels": 7, "num_encoder_blocks": 2, "depths": (1, 1), "sr_ratios": (2, 1)},
        **{"hidden_sizes": (16, 32), "patch_sizes": (7, 3), "strides": (4, 2)},
        **{"num_attention_heads": (1, 2), "mlp_ratios": (2, 2), "decoder_hidden_size": 32},
        **WIDE,
    },
    auto="AutoModelForSemanticSegmentation",
)

add("wav2vec2", "audio", "Wav2Vec2ForCTC", SPEECH)
add("hubert", "audio", "HubertForCTC", SPEECH)
add("wavlm", "audio", "WavLMForCTC", SPEECH)
add(
    "whisper",
    "audio",
    "WhisperForConditionalGeneration",
    SEQ2SEQ
    | SPREAD
    | {"num_mel_bins": MEL_BINS, "max_source_positions": FRAMES // 2, "max_target_positions": 64}
    | {"suppress_tokens": None, "begin_suppress_tokens": None},
    auto="AutoModelForSpeechSeq2Seq",
    make_inputs=spectrogram,
    generates=True,
)

add("clip", "multimodal", "CLIPModel", DRAWS_FREELY)
add("siglip", "multimodal", "SiglipModel", {"vision_config": PATCHES, "text_config": ENCODER})
add(
    "blip",
    "multimodal",
    "BlipForConditionalGeneration",
    {
        "vision_config": PATCHES,
        "text_config": ENCODER | {"encoder_hidden_size": 64, "sep_token_id": EOS},
        "projection_dim": 32,
    },
    auto="AutoModelForImageTextToText",
    make_inputs=caption_and_image,
    generates=True,
)
add(
    "git",
    "multimodal",
    "GitForCausalLM",
    ENCODER | {"vision_config": PATCHES},
    auto="AutoModelForCausalLM",
    make_inputs=caption_and_image,
    generates=True,
)
add(
    "llava",
    "multimodal",
    "LlavaForConditionalGeneration",
    {
        "vision_config": PATCHES | {"model_type": "clip_vision_model"},
        "text_config": GROUPED | {"model_type": "llama"},
        "image_token_index": IMAGE,
        "vision_feature_layer": -1,
    },
    auto="AutoModelForImageTextToText",
    make_inputs=image_in_prompt,
    generates=True,
)

add("mamba", "state space", "MambaForCausalLM", STATE_SPACE | UNTIED | WIDE)
add("falcon_mamba", "state space", "FalconMambaForCausalLM", STATE_SPACE | UNTIED | WIDE)
add(
    "mamba2",
    "state space",
    "Mamba2ForCausalLM",
    STATE_SPACE
    | WIDE
    | {"num_heads": 4, "head_dim": 32, "state_size": 16, "n_groups": 2, "chunk_size": 8},
)


def from_catalogue(row: catalogue.Row) -> Entry:
    def make_inputs(config: PreTrainedConfig, variant: Variant) -> Inputs:
        return tiny.INPUTS[row.inputs](config, rows_of(variant))

    return Entry(
        name=row.model,
        family=row.family,
        model=row.model,
        auto=row.auto,
        config=row.config,
        make_inputs=make_inputs,
        generates=row.generates,
        by_names=True,
    )


ENTRIES += [from_catalogue(row) for row in catalogue.ROWS]
NAMES = [one.name for one in ENTRIES]


def entry(name: str) -> Entry:
    (found,) = [one for one in ENTRIES if one.name == name]
    return found


# --- checkpoints ----------------------------------------------------------------------------------


def make_checkpoint(name: str, directory: Path) -> None:
    """Writes the tiny model as save_pretrained does: config.json, model.safetensors."""
    which = entry(name)
    model_class = getattr(transformers, which.model)
    make_config = model_class.config_class
    if which.by_names:
        config = tiny.tiny_config(make_config, which.config)
    else:
        config = make_config(**which.config)
    torch.manual_seed(SEED)
    model_class(config).save_pretrained(directory)


def in_dtype(dtype: Dtype) -> dict[str, Any]:
    """Options of load(). A checkpoint's own dtype is float32, which nobody has to ask for."""
    return {} if dtype == "float32" else {"dtype": getattr(torch, dtype)}


def load(directory: Path, which: Entry, **options: Any) -> PreTrainedModel:
    """transformers' from_pretrained, as a user calls it."""
    auto = getattr(transformers, which.auto)
    model = auto.from_pretrained(directory, **options)
    assert type(model).__name__ == which.model, f"{which.auto} gave a {type(model).__name__}"
    return model.eval().requires_grad_(False)


def load_local(directory: Path, which: Entry, dtype: Dtype = "float32") -> PreTrainedModel:
    """The reference. Gradients are off because they change which kernels PyTorch picks. Weights are
    copied to where PyTorch would allocate them: safetensors maps a file, so a weight may start at
    any address, and for one row of input a matrix product's bits depend on its alignment to 16
    bytes. In djinnd each starts at a multiple of 512."""
    model = load(directory, which, **in_dtype(dtype))
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.clone()
    return model


# --- the proof that the entries themselves are sound ----------------------------------------------


@torch.no_grad()
def prove(which: Entry, directory: Path) -> str:
    """Builds, loads, runs and generates; returns what a person wants to look at."""
    make_checkpoint(which.name, directory)
    model = load_local(directory, which)
    said = [f"{sum(p.numel() for p in model.parameters()) / 1000:.0f}k parameters"]
    said.append(f"{model.config._attn_implementation}")
    for variant in VARIANTS:
        output = model(**which.forward_inputs(model.config, variant))
        for value in output.to_tuple():
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                assert value.isfinite().all(), "the output is not finite"
        if which.generates:
            said.append(generate(model, which, variant))
    return ", ".join(said)


def generate(model: PreTrainedModel, which: Entry, variant: Variant) -> str:
    tokens = model.generate(**which.inputs(model.config, variant), **GREEDY)
    new = tokens[:, -NEW_TOKENS:]
    assert new.shape == (rows_of(variant), NEW_TOKENS), f"generated {tuple(tokens.shape)}"
    different = min(len(set(row)) for row in new.tolist())
    assert different >= 4, f"a row has {different} different tokens: {new.tolist()}"
    return f"{different} different tokens"


def main(names: list[str]) -> int:
    failed, start = 0, time.monotonic()
    for name in names or NAMES:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as directory:
            try:
                said = prove(entry(name), Path(directory))
            except Exception as error:
                said, failed = f"FAILED: {type(error).__name__}: {error}", failed + 1
        print(f"{name:<14} {time.monotonic() - began:5.2f} s  {said}", flush=True)
    count = len(names or NAMES)
    print(f"{count - failed} of {count} are sound, {time.monotonic() - start:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    torch.set_num_threads(2)
    sys.exit(main(sys.argv[1:]))
