#!/usr/bin/env python3
"""Reads files of `millrace export --format ldm` with diffusers' converter, and compares every tensor with the folder that
`millrace export` makes of the same checkpoint: for a pipeline built as Stable Diffusion 1 and for one built as Stable Diffusion 2,
both narrow, both made and saved by diffusers. The text encoder of the second also goes into OpenCLIP's own. The
first is trained to predict v, which the file does not tell: the .yaml beside it has to, and the shapes in it are those that diffusers
makes the same networks of.

    scripts/check_ldm.py --millrace build/release/bin/millrace [--seed 7]
"""
import argparse
import json
import pathlib
import subprocess
import tempfile

import open_clip
import torch
import yaml
from diffusers import AutoencoderKL, StableDiffusionPipeline, UNet2DConditionModel
from safetensors.torch import load_file
from transformers import CLIPTextConfig, CLIPTextModel

FILES = {"unet": "diffusion_pytorch_model", "vae": "diffusion_pytorch_model", "text_encoder": "model"}
TEXT = dict(hidden_size=64, intermediate_size=256, num_attention_heads=4, num_hidden_layers=3, projection_dim=64)
# What differs between the versions; levels, layers and blocks are diffusers' defaults, which are Stable Diffusion's.
UNETS = {"sd1": dict(attention_head_dim=8, use_linear_projection=False),
         "sd2": dict(attention_head_dim=[2, 4, 8, 8], use_linear_projection=True)}
ACTIVATIONS = {"sd1": "quick_gelu", "sd2": "gelu"}


def make_pipeline(version, tiny, folder, seed):
    """With random weights; tokenizer and scheduler are those of a folder of `millrace init`."""
    torch.manual_seed(seed)
    StableDiffusionPipeline.from_pretrained(
        tiny, safety_checker=None,
        unet=UNet2DConditionModel(sample_size=8, block_out_channels=(32, 64, 128, 128), cross_attention_dim=TEXT["hidden_size"], **UNETS[version]),
        vae=AutoencoderKL(block_out_channels=(32, 64, 128, 128), down_block_types=4 * ("DownEncoderBlock2D",),
                          up_block_types=4 * ("UpDecoderBlock2D",), latent_channels=4, layers_per_block=2, sample_size=64),
        text_encoder=CLIPTextModel(CLIPTextConfig(vocab_size=49408, hidden_act=ACTIVATIONS[version], **TEXT)),
    ).save_pretrained(folder)


def compare(version, file, folder):
    pipeline = StableDiffusionPipeline.from_single_file(str(file), config=str(folder), local_files_only=True, safety_checker=None)
    for component, stem in FILES.items():
        expected = load_file(folder / component / f"{stem}.safetensors")
        found = getattr(pipeline, component).state_dict()
        if component == "text_encoder":  # with or without the prefix, by transformers' version
            expected, found = ({name.removeprefix("text_model."): value for name, value in tensors.items()
                                if not name.endswith("position_ids")} for tensors in (expected, found))
        assert expected.keys() == found.keys(), (component, sorted(expected.keys() ^ found.keys())[:5])
        for name, value in expected.items():
            assert torch.equal(value, found[name]), (component, name)
        print(json.dumps({"version": version, "component": component, "tensors": len(expected), "equal": True}))
    return pipeline


def compare_config(file, folder):
    """Networks built by the .yaml alone."""
    config = file.with_suffix(".yaml")
    assert yaml.safe_load(config.read_text())["model"]["params"]["parameterization"] == "v"
    for component, network in (("unet", UNet2DConditionModel), ("vae", AutoencoderKL)):
        found = network.from_single_file(str(file), original_config=str(config))
        expected = network.from_pretrained(folder / component)
        for name, value in expected.state_dict().items():
            assert torch.equal(value, found.state_dict()[name]), (component, name)
        for key in ("attention_head_dim", "block_out_channels", "cross_attention_dim", "layers_per_block", "scaling_factor"):
            assert found.config.get(key) == expected.config.get(key), (component, key, found.config.get(key), expected.config.get(key))
        print(json.dumps({"version": "sd1", "component": f"{component} by the .yaml", "equal": True}))


def compare_with_open_clip(file, text_encoder):
    """The names are OpenCLIP's where OpenCLIP takes them, and computes the same."""
    prefix = "cond_stage_model.model."
    tensors = {name.removeprefix(prefix): value for name, value in load_file(file).items() if name.startswith(prefix)}
    model = open_clip.CLIP(
        TEXT["projection_dim"], vision_cfg=dict(layers=1, width=64, head_width=16, patch_size=16, image_size=32),
        text_cfg=dict(context_length=77, vocab_size=49408, width=TEXT["hidden_size"], heads=TEXT["num_attention_heads"],
                      layers=TEXT["num_hidden_layers"]), quick_gelu=False).eval()
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    missing = [name for name in missing if not name.startswith("visual.")]
    assert not unexpected, unexpected
    assert set(missing) <= {"text_projection", "logit_scale"}, missing
    ids = torch.randint(0, 49408, (2, 77))
    with torch.no_grad():
        hidden = model.ln_final(model.transformer(model.token_embedding(ids) + model.positional_embedding, attn_mask=model.attn_mask))
        expected = text_encoder.eval()(ids).last_hidden_state
    error = ((hidden - expected).norm() / expected.norm()).item()
    print(json.dumps({"version": "sd2", "component": "text_encoder in open_clip", "tensors": len(tensors), "relative_error": error}))
    assert error < 1e-5, error  # float32 rounding, other order of additions


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millrace", required=True, type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=7)
    arguments = parser.parse_args()

    def millrace(*words):
        done = subprocess.run([arguments.millrace, *map(str, words)], capture_output=True, text=True)
        assert done.returncode == 0, (words, done.stderr)

    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        millrace("init", "--preset", "tiny", "--out", work / "tiny")
        for version in UNETS:
            source, run, folder, file = (work / f"{version}{end}" for end in ("", "-run", "-folder", ".safetensors"))
            make_pipeline(version, work / "tiny", source, arguments.seed)
            prediction = "v_prediction" if version == "sd1" else "epsilon"
            millrace("train", "--config", "configs/synthetic.yaml", f"objective.prediction={prediction}", f"model.pipeline={source}", f"run.dir={run}", "run.device=cpu",
                     "transform.resolution=64", "encode.batch_size=2", "batch.global=2", "batch.micro=2", "duration=2 steps")
            millrace("export", "--run", run, "--out", folder)
            millrace("export", "--run", run, "--format", "ldm", "--out", file)
            pipeline = compare(version, file, folder)
            if version == "sd1":
                compare_config(file, folder)
            else:
                compare_with_open_clip(file, pipeline.text_encoder)


if __name__ == "__main__":
    main()
