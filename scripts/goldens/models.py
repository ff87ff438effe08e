#!/usr/bin/env python3
"""Outputs and gradients of diffusers' and transformers' networks, for tests/models: tests/golden/models/*.json.

Weights and inputs are not stored. Both sides compute them from the tensor's name and the element's index (`noise`), so a
golden file holds only a config, the outputs, and of every gradient its largest value, a checksum and a few samples.
"""
import json
from pathlib import Path

import diffusers
import numpy as np
import torch
import transformers
from diffusers import AutoencoderKL, UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel

OUT = Path(__file__).parents[2] / "tests" / "golden" / "models"
SAMPLES = 6  # values stored of each gradient


def name_hash(name):
    """FNV-1a, 32 bits."""
    value = 0x811C9DC5
    for byte in name.encode():
        value = (value ^ byte) * 0x01000193 % 2**32
    return value


def noise(name, shape):
    """Uniform in [-1, 1), 24 bits: the finaliser of splitmix64 over (hash of the name, index)."""
    count = int(np.prod(shape))
    with np.errstate(over="ignore"):
        x = np.arange(count, dtype=np.uint64) + (np.uint64(name_hash(name)) << np.uint64(32))
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x = x ^ (x >> np.uint64(31))
    return torch.from_numpy(((x >> np.uint64(40)).astype(np.float32) / np.float32(2**23)) - 1).reshape(shape)


def fill_weights(named_parameters):
    """Variance-preserving matrices, norms near one, small biases."""
    with torch.no_grad():
        for name, p in named_parameters:
            values = noise(name, p.shape)
            if p.dim() > 1:
                scale = 1.0 if "embedding.weight" in name else np.float32(np.sqrt(3 / p[0].numel()))
                p.copy_(values * scale)
            else:
                p.copy_(1 + values * np.float32(0.25) if name.endswith("weight") else values * np.float32(0.125))


def unit(name, shape):
    """Noise of unit variance."""
    return noise(name, shape) * np.float32(np.sqrt(3))


def gradients(named_parameters):
    result = {}
    for name, p in named_parameters:
        g = p.grad.double().flatten()
        positions = np.linspace(0, g.numel() - 1, min(SAMPLES, g.numel())).astype(int)
        result[name] = {
            "shape": list(p.shape),
            "largest": short(g.abs().max().item()),
            "checksum": short((g * noise("checksum", g.shape).double()).sum().item()),
            "samples": {str(i): short(g[int(i)].item()) for i in positions},
        }
    return result


def short(value):
    return float(f"{value:.8g}")


def values(tensor):
    return {"shape": list(tensor.shape), "values": [short(v) for v in tensor.detach().flatten().tolist()]}


def write(name, **content):
    versions = {"torch": torch.__version__, "diffusers": diffusers.__version__, "transformers": transformers.__version__}
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / f"{name}.json").write_text(json.dumps({"versions": versions, **content}) + "\n")


def unet(name, latents, timestep, context_width, tokens=7, **config):
    model = UNet2DConditionModel(**config)
    fill_weights(model.named_parameters())
    sample = unit("sample", (len(timestep), config.get("in_channels", 4), *latents))
    context = unit("encoder_hidden_states", (len(timestep), tokens, context_width))
    output = model(sample, torch.tensor(timestep), context).sample
    loss = torch.nn.functional.mse_loss(output, unit("target", output.shape))
    loss.backward()
    write(f"unet_{name}", config=config, sample=list(sample.shape), timestep=timestep, context=list(context.shape),
          output=values(output), loss=loss.item(), gradients=gradients(model.named_parameters()))


def vae(name, image, **config):
    model = AutoencoderKL(**config)
    fill_weights(model.named_parameters())
    x = noise("image", image)
    moments = model.encode(x).latent_dist.parameters
    latent = unit("latent", (image[0], config["latent_channels"], *moments.shape[2:]))
    decoded = model.decode(latent).sample
    loss = torch.nn.functional.mse_loss(moments, unit("moments", moments.shape))
    loss = loss + torch.nn.functional.mse_loss(decoded, unit("decoded", decoded.shape))
    loss.backward()
    write(f"vae_{name}", config=config, image=list(x.shape), latent=list(latent.shape), moments=values(moments),
          decoded=values(decoded[:, :, ::3, ::3]), loss=loss.item(), gradients=gradients(model.named_parameters()))


def clip(name, tokens, **config):
    model = CLIPTextModel(CLIPTextConfig(**config))
    # Newer transformers leave out the prefix that the published folders have.
    named = [(n if n.startswith("text_model.") else f"text_model.{n}", p) for n, p in model.named_parameters()]
    fill_weights(named)
    ids = [[(7 * i * i + 3 * i + 11 * row) % config["vocab_size"] for i in range(tokens)] for row in range(2)]
    hidden = model(torch.tensor(ids))[0]
    write(f"clip_{name}", config=config, ids=ids, hidden=values(hidden),
          shapes={n: list(p.shape) for n, p in named})


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    down, cross_down, up, cross_up = "DownBlock2D", "CrossAttnDownBlock2D", "UpBlock2D", "CrossAttnUpBlock2D"
    unet("sd1_like", (8, 8), [10, 750], 24, block_out_channels=[32, 64], down_block_types=[cross_down, down],
         up_block_types=[up, cross_up], cross_attention_dim=24, attention_head_dim=4, norm_num_groups=8)
    unet("sd2_like", (16, 8), [961.5, 0.25], 32, tokens=77, block_out_channels=[16, 32, 32, 32],
         layers_per_block=1, down_block_types=[cross_down, cross_down, cross_down, down],
         up_block_types=[up, cross_up, cross_up, cross_up], cross_attention_dim=32, attention_head_dim=[2, 4, 4, 8],
         norm_num_groups=8, use_linear_projection=True, upcast_attention=True, sample_size=16)
    # Everything unusual at once; 24 channels with 5 heads and 40 with 3 make narrower transformers.
    unet("odd", (13, 9), [999, 0, 500], 20, in_channels=5, out_channels=3, block_out_channels=[16, 24, 40],
         down_block_types=[cross_down, down, cross_down], up_block_types=[cross_up, cross_up, up],
         layers_per_block=[1, 2, 1], transformer_layers_per_block=[1, 2, 2], cross_attention_dim=20,
         attention_head_dim=[2, 5, 3], norm_num_groups=8, norm_eps=1e-4, use_linear_projection=True, act_fn="gelu",
         flip_sin_to_cos=False, freq_shift=1, resnet_time_scale_shift="scale_shift", mid_block_scale_factor=1.5,
         center_input_sample=True, conv_in_kernel=5, conv_out_kernel=1, time_embedding_dim=48, downsample_padding=0,
         only_cross_attention=[True, False, False], time_embedding_act_fn="silu", timestep_post_act="mish")
    unet("plain", (6, 10), [3, 4], 8, block_out_channels=[8, 16], down_block_types=[down, down],
         up_block_types=[up, up], mid_block_type="UNetMidBlock2D", layers_per_block=1, norm_num_groups=4,
         cross_attention_dim=8)
    unet("no_mid", (4, 4), [3, 400], 8, block_out_channels=[8], down_block_types=[cross_down], attention_head_dim=2,
         up_block_types=[cross_up], mid_block_type=None, layers_per_block=1, norm_num_groups=4, cross_attention_dim=8)
    vae("sd_like", (1, 3, 32, 48), block_out_channels=[8, 16, 16, 16], down_block_types=["DownEncoderBlock2D"] * 4,
        up_block_types=["UpDecoderBlock2D"] * 4, layers_per_block=2, latent_channels=4, norm_num_groups=4)
    vae("odd", (2, 3, 23, 17), block_out_channels=[8, 12], down_block_types=["DownEncoderBlock2D"] * 2,
        up_block_types=["UpDecoderBlock2D"] * 2, layers_per_block=1, latent_channels=3, norm_num_groups=2,
        act_fn="mish", use_quant_conv=False, use_post_quant_conv=False, mid_block_add_attention=False)
    clip("sd1_like", 20, vocab_size=99, hidden_size=24, intermediate_size=56, num_hidden_layers=3,
         num_attention_heads=4, max_position_embeddings=20, hidden_act="quick_gelu")
    clip("sd2_like", 11, vocab_size=99, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
         num_attention_heads=2, max_position_embeddings=16, hidden_act="gelu", projection_dim=16)


if __name__ == "__main__":
    main()
