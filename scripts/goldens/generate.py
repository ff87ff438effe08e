#!/usr/bin/env python3
"""Pictures of a tiny Stable Diffusion pipeline, made by diffusers' StableDiffusionPipeline.

Writes tests/golden/generate/: the configs, a tokenizer of single bytes, final latents and pixels. All weights and the
initial latents are formulas, so that no numbers but the results are stored.
"""
import base64
import json
import math
import warnings
from pathlib import Path

import diffusers
import numpy
import torch
import transformers
from diffusers import (AutoencoderKL, DDIMScheduler, DPMSolverMultistepScheduler, EulerDiscreteScheduler, PNDMScheduler,
                       StableDiffusionPipeline, UniPCMultistepScheduler, UNet2DConditionModel)
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

warnings.filterwarnings("ignore")
diffusers.utils.logging.set_verbosity_error()
transformers.utils.logging.set_verbosity_error()
OUT = Path(__file__).resolve().parents[2] / "tests/golden/generate"
CLASSES = [DDIMScheduler, PNDMScheduler, EulerDiscreteScheduler, DPMSolverMultistepScheduler, UniPCMultistepScheduler]
PROMPTS, NEGATIVE = ["a red boat", "two cats"], "blurry"

UNET = dict(sample_size=4, in_channels=4, out_channels=4, center_input_sample=False, flip_sin_to_cos=True, freq_shift=0,
            down_block_types=["CrossAttnDownBlock2D", "DownBlock2D"], up_block_types=["UpBlock2D", "CrossAttnUpBlock2D"],
            block_out_channels=[16, 32], layers_per_block=1, downsample_padding=1, mid_block_scale_factor=1,
            act_fn="silu", norm_num_groups=8, norm_eps=1e-5, cross_attention_dim=24, attention_head_dim=2)
VAE = dict(in_channels=3, out_channels=3, latent_channels=4, sample_size=8, act_fn="silu", norm_num_groups=4,
           block_out_channels=[8, 16], layers_per_block=1, scaling_factor=0.18215,
           down_block_types=["DownEncoderBlock2D"] * 2, up_block_types=["UpDecoderBlock2D"] * 2)
SCHEDULER = dict(_class_name="PNDMScheduler", num_train_timesteps=1000, beta_start=0.00085, beta_end=0.012,
                 beta_schedule="scaled_linear", trained_betas=None, clip_sample=False, set_alpha_to_one=False,
                 steps_offset=1, skip_prk_steps=True)


def tokenizer_files():
    """Every byte is a token, twice: inside a word and at its end."""
    visible = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    letters = [chr(b) for b in visible] + [chr(256 + i) for i in range(256 - len(visible))]
    tokens = letters + [c + "</w>" for c in letters] + ["<|startoftext|>", "<|endoftext|>"]
    (OUT / "tokenizer").mkdir(parents=True, exist_ok=True)
    vocab = {token: i for i, token in enumerate(tokens)}
    (OUT / "tokenizer/vocab.json").write_text(json.dumps(vocab, ensure_ascii=False) + "\n")
    (OUT / "tokenizer/merges.txt").write_text("#version: 0.2\n")
    (OUT / "tokenizer/tokenizer_config.json").write_text(json.dumps(dict(
        bos_token="<|startoftext|>", eos_token="<|endoftext|>", unk_token="<|endoftext|>", pad_token="<|endoftext|>",
        do_lower_case=True, model_max_length=77, tokenizer_class="CLIPTokenizer"), indent=2) + "\n")
    (OUT / "tokenizer/special_tokens_map.json").write_text(json.dumps(dict(
        bos_token="<|startoftext|>", eos_token="<|endoftext|>", unk_token="<|endoftext|>",
        pad_token="<|endoftext|>"), indent=2) + "\n")
    return len(tokens)


def public(config):
    return {key: value for key, value in config.items() if not key.startswith("_")}


def noise(count, salt):
    """Numbers in [-1, 1) without visible pattern: the fraction of a large sine."""
    i = numpy.arange(count, dtype=numpy.float64)
    s = numpy.sin(12.9898 * (i + 1) + 78.233 * (salt + 1)) * 43758.5453
    return torch.from_numpy(2 * (s - numpy.floor(s)) - 1)


@torch.no_grad()
def fill(model):
    named = {name.replace("text_model.", ""): p for name, p in model.named_parameters()}
    for salt, name in enumerate(sorted(named)):
        p = named[name]
        scale = 0.2 if p.dim() == 1 else math.sqrt(3 / (p.numel() / p.shape[0]))
        offset = 1 if p.dim() == 1 and name.endswith("weight") else 0
        p.copy_((offset + scale * noise(p.numel(), salt)).reshape(p.shape))
    return model.eval()


@torch.no_grad()
def main():
    torch.set_num_threads(1)
    vocabulary = tokenizer_files()
    text = dict(vocab_size=vocabulary, hidden_size=24, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
                max_position_embeddings=77, hidden_act="quick_gelu", layer_norm_eps=1e-5,
                bos_token_id=vocabulary - 2, eos_token_id=vocabulary - 1, pad_token_id=vocabulary - 1)
    pipeline = StableDiffusionPipeline(
        unet=fill(UNet2DConditionModel(**UNET)), vae=fill(AutoencoderKL(**VAE)),
        text_encoder=fill(CLIPTextModel(CLIPTextConfig(**text))), tokenizer=CLIPTokenizer.from_pretrained(OUT / "tokenizer"),
        scheduler=PNDMScheduler.from_config(SCHEDULER), safety_checker=None, feature_extractor=None,
        requires_safety_checker=False)
    pipeline.set_progress_bar_config(disable=True)
    latents = noise(2 * 4 * 4 * 4, 1).reshape(2, 4, 4, 4).float() * math.sqrt(3)
    cases = []
    for prediction in ("epsilon", "v_prediction"):
        for cls in CLASSES:
            for scale, rescale, steps in ((1.0, 0, 7), (1.0, 0, 20), (7.5, 0, 7), (7.5, 0, 20), (7.5, 0.7, 7)):
                pipeline.scheduler = cls.from_config(dict(SCHEDULER, prediction_type=prediction))
                settings = dict(prompt=PROMPTS, negative_prompt=[NEGATIVE] * 2, num_inference_steps=steps,
                                guidance_scale=scale, guidance_rescale=rescale, latents=latents)
                final = pipeline(**settings, output_type="latent").images
                images = pipeline.vae.decode(final / pipeline.vae.config.scaling_factor).sample
                images = pipeline.image_processor.postprocess(images, output_type="np")
                pixels = (images * 255).round().astype(numpy.uint8)
                assert torch.isfinite(final).all() and 3 < pixels.std(), (cls, prediction)
                cases.append(dict(to=cls.__name__, prediction=prediction, guidance_scale=scale, guidance_rescale=rescale, steps=steps,
                                  latents=[float(f"{v:.7g}") for v in final.flatten().tolist()],
                                  pixels=base64.b16encode(pixels.tobytes()).decode()))
    reference = dict(versions=dict(diffusers=diffusers.__version__, transformers=transformers.__version__,
                                   torch=torch.__version__),
                     unet=public(pipeline.unet.config), vae=public(pipeline.vae.config),
                     text_encoder=text, scheduler=SCHEDULER, prompts=PROMPTS,
                     negative_prompt=NEGATIVE, cases=cases)
    path = OUT / "reference.json"
    path.write_text(json.dumps(reference, separators=(",", ":"), default=str) + "\n")
    print(path, path.stat().st_size, "bytes", len(cases), "cases")
    spread = [numpy.abs(c["latents"]).max() for c in cases]
    print("largest latents", min(spread), "...", max(spread))


if __name__ == "__main__":
    main()
