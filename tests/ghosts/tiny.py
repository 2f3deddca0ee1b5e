# SPDX-License-Identifier: Apache-2.0
"""Tiny configurations of transformers' classes, made from nothing but the names of their fields.

tiny_config(config_class)     the class's defaults, with every size that is known made small
INPUTS["text"](config, rows)  what a forward pass of such a model may be given
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from transformers import PreTrainedConfig

VOCABULARY = 128
PAD, BOS, EOS, FIRST_WORD, IMAGE, VIDEO, AUDIO = 0, 1, 2, 3, 127, 126, 125
WORDS_END = 124  # what is above stands for something else
TOKENS = 11
IMAGE_SIZE, PATCH, FRAMES_OF_VIDEO = 32, 8, 4
MEL_BINS, FRAMES = 16, 60
SAMPLES = 1600
SERIES = 24

# By name, in whichever class; a class without the field ignores it.
SIZES: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "hidden_dim"), 64),
    **dict.fromkeys(("embedding_size", "projection_dim", "word_embed_proj_dim"), 64),
    **dict.fromkeys(("out_hidden_size", "encoder_hidden_size", "output_dim", "emb_dim"), 64),
    **dict.fromkeys(("decoder_hidden_size", "fusion_hidden_size", "proj_size"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "depth"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("num_encoder_layers", "decoder_num_hidden_layers", "num_blocks"), 2),
    **dict.fromkeys(("encoder_num_hidden_layers", "num_dense_layers", "resampler_depth"), 1),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("attention_heads", "decoder_num_attention_heads"), 4),
    **dict.fromkeys(("encoder_num_attention_heads", "resampler_n_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "decoder_num_key_value_heads"), 2),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "encoder_ffn_dim"), 96),
    **dict.fromkeys(("decoder_ffn_dim", "n_inner", "ffn_hidden_size", "mlp_dim"), 96),
    **dict.fromkeys(("decoder_intermediate_size", "encoder_intermediate_size"), 96),
    **dict.fromkeys(("head_dim", "d_kv", "v_head_dim", "qk_nope_head_dim"), 16),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "attention_head_dim"), 16),
    **dict.fromkeys(("qk_rope_head_dim",), 8),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("moe_num_experts", "num_moe_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k"), 2),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 32),
    **dict.fromkeys(("shared_intermediate_size", "expert_ffn_hidden_size"), 32),
    **dict.fromkeys(("n_shared_experts", "n_group", "topk_group"), 1),
    **dict.fromkeys(("first_k_dense_replace",), 1),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len"), 1024),
    **dict.fromkeys(("max_source_positions",), FRAMES // 2),
    **dict.fromkeys(("max_target_positions",), 64),
    **{"vocab_size": VOCABULARY, "sliding_window": 16, "rotary_dim": 8, "embedding_size": 64},
    **{"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS, "initializer_range": 0.1},
    **{"decoder_start_token_id": BOS, "forced_eos_token_id": None, "forced_bos_token_id": None},
    **{"sep_token_id": EOS, "cls_token_id": BOS, "mask_token_id": 4},
    **dict.fromkeys(("image_token_id", "image_token_index"), IMAGE),
    **dict.fromkeys(("video_token_id", "video_token_index"), VIDEO),
    **dict.fromkeys(("audio_token_id", "audio_token_index"), AUDIO),
    **{"image_size": IMAGE_SIZE, "patch_size": PATCH, "temporal_patch_size": 2},
    **{"num_frames": FRAMES_OF_VIDEO, "num_mel_bins": MEL_BINS, "audio_channels": 1},
    **{"num_queries": 8, "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2},
    **{"conv_dim": (32, 32), "conv_kernel": (10, 3), "conv_stride": (5, 2)},
    **{"tdnn_dim": (32, 32), "tdnn_kernel": (3, 1), "tdnn_dilation": (1, 1)},
    **{"xvector_output_dim": 32, "classifier_proj_size": 32, "codevector_dim": 32},
    **{"proj_codevector_dim": 32, "mamba_d_state": 16, "mamba_n_heads": 4, "mamba_d_head": 32},
    **{"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 16},
    **{"linear_value_head_dim": 16, "index_n_heads": 2, "index_head_dim": 16, "index_topk": 8},
    **{"context_length": SERIES, "prediction_length": 4, "lags_sequence": [1, 2]},
    **{"window_size": 4, "relative_attention_num_buckets": 8, "position_buckets": 8},
    **{"relative_attention_max_distance": 16, "suppress_tokens": None},
    **{"begin_suppress_tokens": None, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0},
    **{"local_attention": 4, "num_codebooks": 4, "codebook_size": 32},
}

# Of each stage of a network: the first one's, and how it grows.
STAGES: dict[str, tuple[int, int]] = {
    **dict.fromkeys(("depths", "num_layers", "layer_depths", "encoder_layers"), (1, 1)),
    **dict.fromkeys(("hidden_sizes", "embed_dim", "embed_dims", "block_dims"), (16, 2)),
    **dict.fromkeys(("stage_out_channels", "stage_mid_channels", "hidden_channels"), (16, 2)),
    **dict.fromkeys(("num_heads", "num_attention_heads"), (1, 2)),
}


def tiny_value(name: str, default: Any) -> Any:
    """The size of that name; one a stage where the class has a list of them."""
    if not isinstance(default, list | tuple):
        known = SIZES.get(name, default)
        return known if default is None or not isinstance(known, list | tuple) else default
    if isinstance(SIZES.get(name), list | tuple):
        return SIZES[name]
    if name not in STAGES or not all(isinstance(one, int) for one in default):
        return default
    first, factor = STAGES[name]
    return type(default)(first * factor**stage for stage in range(len(default)))


def tiny_sizes(
    config_class: type[PreTrainedConfig], given: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Keywords of the class; `given` are those that a model needs otherwise, nested as they are. A
    part of it that names its own model_type is complete."""
    given = given or {}
    default = config_class()
    sizes: dict[str, Any] = {}
    for field in dataclasses.fields(config_class):
        name = next((n for n, to in config_class.attribute_map.items() if to == field.name), "")
        name = field.name if field.name in SIZES or name not in SIZES else name
        if name in SIZES or name in STAGES:
            sizes[field.name] = tiny_value(name, vars(default).get(field.name))
    if "qk_rope_head_dim" in sizes:
        sizes.pop("head_dim", None)
        sizes.pop("num_key_value_heads", None)
    for name in config_class.sub_configs:
        part, wanted = getattr(default, name, None), given.get(name, {})
        if isinstance(part, PreTrainedConfig) and "model_type" not in wanted:
            sizes[name] = tiny_sizes(type(part), wanted) | {"model_type": part.model_type}
        elif wanted:  # of another class than by default, or of none by default
            sizes[name] = wanted
    return sizes | {k: v for k, v in given.items() if k not in config_class.sub_configs}


def tiny_config(
    config_class: type[PreTrainedConfig], given: dict[str, Any] | None = None
) -> PreTrainedConfig:
    return config_class(**tiny_sizes(config_class, given))


# --- inputs ---------------------------------------------------------------------------------------

Inputs = dict[str, torch.Tensor]


def drawn(stream: int) -> torch.Generator:
    return torch.Generator().manual_seed(20000 + stream)


def words(rows: int, length: int, stream: int = 1) -> torch.Tensor:
    return torch.randint(FIRST_WORD, WORDS_END, (rows, length), generator=drawn(stream))


def noise(*sizes: int) -> torch.Tensor:
    return torch.randn(sizes, generator=drawn(3))


def text(config: PreTrainedConfig, rows: int) -> Inputs:
    ids = words(rows, TOKENS)
    if rows == 1:
        return {"input_ids": ids}
    mask = torch.ones_like(ids)
    for row in range(1, rows):
        mask[row, : 3 * row] = 0
    return {"input_ids": ids.masked_fill(mask == 0, PAD), "attention_mask": mask}


def size_of_image(config: PreTrainedConfig) -> int:
    for one in (config, *(getattr(config, name, None) for name in config.sub_configs)):
        size = getattr(one, "image_size", None)
        if size:
            return int(size[0] if isinstance(size, list | tuple) else size)
    return 2 * IMAGE_SIZE


def image(config: PreTrainedConfig, rows: int) -> Inputs:
    size = size_of_image(config)
    return {"pixel_values": noise(rows, getattr(config, "num_channels", 3) or 3, size, size)}


def image_and_trimap(config: PreTrainedConfig, rows: int) -> Inputs:
    """The trimap is a fourth channel."""
    size = size_of_image(config)
    return {"pixel_values": noise(rows, 4, size, size)}


def image_and_point(config: PreTrainedConfig, rows: int) -> Inputs:
    """Of each image one mask is wanted, and one point of it is known."""
    points = torch.tensor([[[[12.0, 20.0]]]]).repeat(rows, 1, 1, 1)
    return image(config, rows) | {"input_points": points}


def pair_of_images(config: PreTrainedConfig, rows: int) -> Inputs:
    """Random dots, and the same dots shifted: corners that can be found in both."""
    first = noise(rows, 3, 2 * IMAGE_SIZE, 2 * IMAGE_SIZE)
    return {"pixel_values": torch.stack((first, first.roll((8, 8), (2, 3))), dim=1)}


def video(config: PreTrainedConfig, rows: int) -> Inputs:
    size = size_of_image(config)
    return {"pixel_values": noise(rows, FRAMES_OF_VIDEO, 3, size, size)}


def videos(config: PreTrainedConfig, rows: int) -> Inputs:
    size = size_of_image(config)
    frames = getattr(config, "frames_per_clip", FRAMES_OF_VIDEO)
    return {"pixel_values_videos": noise(rows, frames, 3, size, size)}


def spectrogram(config: PreTrainedConfig, rows: int) -> Inputs:
    """Bins, then frames."""
    return {"input_features": noise(rows, MEL_BINS, FRAMES)}


def features(config: PreTrainedConfig, rows: int) -> Inputs:
    """Frames, then bins."""
    bins = getattr(config, "input_feat_per_channel", None) or getattr(
        config, "feature_projection_input_dim", MEL_BINS
    )
    return {"input_features": noise(rows, FRAMES, bins)}


def waveform(config: PreTrainedConfig, rows: int) -> Inputs:
    return {"input_values": noise(rows, SAMPLES)}


def channelled_waveform(config: PreTrainedConfig, rows: int) -> Inputs:
    return {"input_values": noise(rows, 1, SAMPLES)}


def patches_of_sound(config: PreTrainedConfig, rows: int) -> Inputs:
    return {"input_values": noise(rows, config.max_length, config.num_mel_bins)}


def series(config: PreTrainedConfig, rows: int) -> Inputs:
    """Of one channel after another, as PatchTST and its like take them."""
    channels = getattr(config, "num_input_channels", 1)
    return {"past_values": noise(rows, config.context_length, channels)}


def series_with_time(config: PreTrainedConfig, rows: int) -> Inputs:
    """Past and, of an encoder-decoder, future features of time."""
    past = config.context_length + max(config.lags_sequence)
    times = config.num_time_features
    return {
        "past_values": noise(rows, past),
        "past_time_features": noise(rows, past, times),
        "past_observed_mask": torch.ones(rows, past),
        "future_values": noise(rows, config.prediction_length),
        "future_time_features": noise(rows, config.prediction_length, times),
    }


def plain_series(config: PreTrainedConfig, rows: int) -> Inputs:
    return {"past_values": noise(rows, config.context_length)}


def text_and_image(config: PreTrainedConfig, rows: int) -> Inputs:
    return text(config, rows) | image(config, rows)


def text_and_waveform(config: PreTrainedConfig, rows: int) -> Inputs:
    return text(config, rows) | waveform(config, rows)


def text_and_features(config: PreTrainedConfig, rows: int) -> Inputs:
    return text(config, rows) | features(config, rows)


def choices(config: PreTrainedConfig, rows: int) -> Inputs:
    """Two endings of each row."""
    return {"input_ids": words(rows * 2, TOKENS).view(rows, 2, TOKENS)}


INPUTS: dict[str, Callable[[PreTrainedConfig, int], Inputs]] = {
    "text": text,
    "image": image,
    "image and trimap": image_and_trimap,
    "image and point": image_and_point,
    "pair of images": pair_of_images,
    "video": video,
    "videos": videos,
    "spectrogram": spectrogram,
    "features": features,
    "waveform": waveform,
    "channelled waveform": channelled_waveform,
    "patches of sound": patches_of_sound,
    "series": series,
    "series with time": series_with_time,
    "plain series": plain_series,
    "text and image": text_and_image,
    "text and waveform": text_and_waveform,
    "text and features": text_and_features,
    "choices": choices,
}
