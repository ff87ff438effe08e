#!/usr/bin/env python3
"""Diffusers folders as the Python stack writes them, in all the forms that are found in the wild.

Writes tests/golden/folder (small folders with random weights) and tests/golden/presets (key lists, shapes and
statistics of freshly made models, without their weights).
"""
import json
import shutil
from pathlib import Path

import diffusers
import safetensors.torch
import torch
import transformers
from diffusers import AutoencoderKL, PNDMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "golden"
VERSIONS = {"diffusers": diffusers.__version__, "transformers": transformers.__version__, "torch": torch.__version__}

UNET = dict(
    sample_size=8, block_out_channels=(4, 8), layers_per_block=1, norm_num_groups=2, cross_attention_dim=8,
    attention_head_dim=(1, 2), use_linear_projection=True,
    down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
)
VAE = dict(
    sample_size=16, block_out_channels=(4, 8), layers_per_block=1, norm_num_groups=2,
    down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
)
TEXT = dict(
    vocab_size=64, hidden_size=8, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2, projection_dim=8,
    max_position_embeddings=77, hidden_act="quick_gelu",
    bos_token_id=62, eos_token_id=63,
)
SD_BETAS = dict(
    beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", num_train_timesteps=1000, set_alpha_to_one=False,
    skip_prk_steps=True, steps_offset=1,
)


def to_json(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, separators=(",", ":")) + "\n")


def make_tokenizer(folder):
    """Bytes and one word are enough: no test of these folders reads text."""
    folder.mkdir(parents=True)
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    symbols = [chr(byte) for byte in printable] + [chr(256 + i) for i in range(256 - len(printable))]
    words = symbols + [symbol + "</w>" for symbol in symbols] + ["w1</w>", "<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({word: i for i, word in enumerate(words)}))
    (folder / "merges.txt").write_text("#version: 0.2\nw 1</w>\n")
    CLIPTokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"), model_max_length=77).save_pretrained(folder)


def rewrite(source, target, change):
    tensors = change(safetensors.torch.load_file(source))
    target.parent.mkdir(parents=True, exist_ok=True)
    safetensors.torch.save_file({k: v.contiguous() for k, v in tensors.items()}, target, metadata={"format": "pt"})
    shutil.copy(source.parent / "config.json", target.parent / "config.json")


def old_attention_names(tensors, convolutions):
    names = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}
    result = {}
    for key, value in tensors.items():
        if "attentions" in key:
            for new, old in names.items():
                if f".{new}." in key:
                    key = key.replace(f".{new}.", f".{old}.")
                    value = value[:, :, None, None] if convolutions and value.dim() == 2 else value
        result[key] = value
    return result


def summary(model, prefix=""):
    return {prefix + key: [list(t.shape), t.double().sum().item(), t.flatten()[-1].item()]
            for key, t in model.state_dict().items() if not key.endswith("position_ids")}


def folders():
    out = GOLDEN / "folder"
    shutil.rmtree(out, ignore_errors=True)
    torch.manual_seed(1)
    unet, vae, text = UNet2DConditionModel(**UNET), AutoencoderKL(**VAE), CLIPTextModel(CLIPTextConfig(**TEXT))
    make_tokenizer(out / "tokenizer_source")
    pipeline = StableDiffusionPipeline(
        vae=vae, text_encoder=text, tokenizer=CLIPTokenizer.from_pretrained(out / "tokenizer_source"), unet=unet,
        scheduler=PNDMScheduler(**SD_BETAS), safety_checker=None, feature_extractor=None, requires_safety_checker=False)
    plain = out / "pipeline"
    pipeline.save_pretrained(plain)
    shutil.rmtree(out / "tokenizer_source")
    to_json(out / "expected.json", {"versions": VERSIONS, "unet": summary(unet), "vae": summary(vae),
                                    "text_encoder": summary(text, "text_model.")})

    # Variants lie beside the plain files; weights that were cast, and weights that were sharded.
    fp16 = UNet2DConditionModel.from_pretrained(plain / "unet").half()
    fp16.save_pretrained(plain / "unet", variant="fp16")
    CLIPTextModel.from_pretrained(plain / "text_encoder").half().save_pretrained(plain / "text_encoder", variant="fp16")
    UNet2DConditionModel.from_pretrained(plain / "unet").bfloat16().save_pretrained(out / "unet_bf16")
    unet.save_pretrained(out / "unet_sharded", max_shard_size="40KB")
    fp16.save_pretrained(out / "unet_sharded", max_shard_size="20KB", variant="fp16")
    text.save_pretrained(out / "text_encoder_sharded", max_shard_size="5KB")

    # Old names of the autoencoder's attention, as linear layers and as 1x1 convolutions, and no scaling factor.
    vae_file = plain / "vae/diffusion_pytorch_model.safetensors"
    for name, convolutions in (("vae_old_names", False), ("vae_old_convolutions", True)):
        target = out / name / "diffusion_pytorch_model.safetensors"
        rewrite(vae_file, target, lambda tensors: old_attention_names(tensors, convolutions))
        config = json.loads((target.parent / "config.json").read_text())
        del config["scaling_factor"]
        (target.parent / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")

    # transformers since 5.6 writes the text encoder without its prefix; the hub's files have it, old ones position_ids too.
    text_file, prefix = plain / "text_encoder/model.safetensors", "text_model."
    assert "final_layer_norm.weight" in safetensors.torch.load_file(text_file)
    add = lambda tensors: {prefix + key: value for key, value in tensors.items()}
    rewrite(text_file, out / "text_encoder_prefixed/model.safetensors", add)
    rewrite(text_file, out / "text_encoder_position_ids/model.safetensors",
            lambda tensors: add(tensors) | {prefix + "embeddings.position_ids": torch.arange(77)[None]})

    for path in out.rglob("*"):
        if path.name in ("README.md", "generation_config.json"):
            path.unlink()
        elif path.is_file():
            path.chmod(0o644)
        if path.name == "config.json":
            config = {key: value for key, value in json.loads(path.read_text()).items() if key != "_name_or_path"}
            path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def big_configs():
    unet = dict(sample_size=64, norm_num_groups=32, block_out_channels=(320, 640, 1280, 1280))
    vae = dict(block_out_channels=(128, 256, 512, 512), layers_per_block=2, down_block_types=("DownEncoderBlock2D",) * 4,
               up_block_types=("UpDecoderBlock2D",) * 4)
    heads = dict(attention_head_dim=(5, 10, 20, 20), use_linear_projection=True)
    tiny_unet = dict(
        sample_size=8, block_out_channels=(32, 64, 128), layers_per_block=1, norm_num_groups=8, cross_attention_dim=64,
        attention_head_dim=(2, 4, 8), use_linear_projection=True,
        down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"))
    tiny_vae = dict(block_out_channels=(16, 32, 64), layers_per_block=1, norm_num_groups=8,
                    down_block_types=("DownEncoderBlock2D",) * 3, up_block_types=("UpDecoderBlock2D",) * 3)
    tiny_text = dict(hidden_size=64, intermediate_size=256, num_attention_heads=4, num_hidden_layers=2)
    text_l = dict(hidden_size=768, intermediate_size=3072, num_attention_heads=12, num_hidden_layers=12)
    text_h = dict(hidden_size=1024, intermediate_size=4096, num_attention_heads=16, num_hidden_layers=23, hidden_act="gelu")
    return {
        "tiny": (tiny_unet, tiny_vae, tiny_text),
        "sd1": (unet | dict(cross_attention_dim=768), vae, text_l),
        "sd2": (unet | heads | dict(cross_attention_dim=1024), vae, text_h),
    }


def shapes(model, prefix=""):
    return {prefix + key: list(value.shape) for key, value in model.state_dict().items()
            if not key.endswith("position_ids")}


def statistics(model, prefix=""):
    """Standard deviation and largest value of every tensor with at least 256 numbers; the value of constant ones."""
    result = {}
    for key, value in model.state_dict().items():
        value = value.double()
        if value.min() == value.max():
            result[prefix + key] = ["constant", value.flatten()[0].item()]
        elif value.numel() >= 256:
            result[prefix + key] = ["random", round(value.std().item(), 6), round(value.abs().max().item(), 6)]
    return result


def presets():
    out = GOLDEN / "presets"
    shutil.rmtree(out, ignore_errors=True)
    for name, (unet, vae, text) in big_configs().items():
        with torch.device("meta"):
            models = UNet2DConditionModel(**unet), AutoencoderKL(**vae), CLIPTextModel(CLIPTextConfig(**text))
        to_json(out / f"{name}_shapes.json", {"versions": VERSIONS, "unet": shapes(models[0]), "vae": shapes(models[1]),
                                              "text_encoder": shapes(models[2], "text_model.")})
    torch.manual_seed(1)
    unet, vae, text = big_configs()["tiny"]
    to_json(out / "tiny_statistics.json", {
        "versions": VERSIONS, "unet": statistics(UNet2DConditionModel(**unet)), "vae": statistics(AutoencoderKL(**vae)),
        "text_encoder": statistics(CLIPTextModel(CLIPTextConfig(**text)), "text_model.")})


if __name__ == "__main__":
    torch.set_num_threads(1)
    folders()
    presets()
