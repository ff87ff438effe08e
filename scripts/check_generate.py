#!/usr/bin/env python3
"""Compares `millrace generate` with diffusers' StableDiffusionPipeline on one pipeline folder.

    scripts/check_generate.py --millrace build/release/bin/millrace --pipeline DIR [--steps 7,20] [-- OVERRIDE...]

Both start from the same initial latents and run on the CPU in fp32. Prints one row per sampler, prediction type,
guidance scale, guidance_rescale and number of steps; ends with 1 when a final latent or a pixel is further off than allowed.
Needs Python with torch, diffusers, transformers, safetensors and Pillow.
"""
import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import diffusers
import numpy
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import check_replay

SAMPLERS = dict(ddim="DDIMScheduler", pndm="PNDMScheduler", euler="EulerDiscreteScheduler",
                dpmpp_2m="DPMSolverMultistepScheduler", unipc="UniPCMultistepScheduler")
PROMPTS = ["a photograph of a red boat on a lake", "Two cats, watercolour: élégant!"]
NEGATIVE = "blurry, low quality"


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millrace", required=True, type=Path, help="the program")
    parser.add_argument("--pipeline", required=True, type=Path, help="folder in diffusers' layout")
    parser.add_argument("--samplers", default=",".join(SAMPLERS))
    parser.add_argument("--predictions", default="epsilon,v_prediction")
    parser.add_argument("--guidance", default="1,7.5")
    parser.add_argument("--rescale", default="0,0.7", help="guidance_rescale, where there is guidance")
    parser.add_argument("--steps", default="7,20")
    parser.add_argument("--latent-limit", type=float, default=1e-3, help="relative error of a final latent (L2)")
    parser.add_argument("--pixel-limit", type=int, default=2, help="difference of a PNG in levels")
    parser.add_argument("overrides", nargs="*", help="further keys for millrace")
    return parser.parse_args()


def with_prediction(pipeline, prediction, folder):
    """The same pipeline with another prediction_type: links, and a scheduler folder of its own."""
    folder.mkdir()
    for item in pipeline.iterdir():
        if item.name == "scheduler":
            shutil.copytree(item, folder / "scheduler")
        elif item.is_file():
            shutil.copy(item, folder / item.name)
        else:
            (folder / item.name).symlink_to(item.resolve())
    file = folder / "scheduler/scheduler_config.json"
    config = json.loads(file.read_text())
    config["prediction_type"] = prediction
    file.write_text(json.dumps(config, indent=2) + "\n")
    return folder


def reference_images(pipeline, scheduler_config, sampler, guidance, rescale, steps, latents):
    pipeline.scheduler = getattr(diffusers, SAMPLERS[sampler]).from_config(scheduler_config)
    with torch.no_grad():
        final = pipeline(PROMPTS, negative_prompt=[NEGATIVE] * len(PROMPTS), num_inference_steps=steps,
                         guidance_scale=guidance, guidance_rescale=rescale, latents=latents.clone(), output_type="latent").images
        decoded = pipeline.vae.decode(final / pipeline.vae.config.scaling_factor).sample
    images = pipeline.image_processor.postprocess(decoded, output_type="np")
    return final, (images * 255).round().astype(numpy.uint8)


def millrace_images(arguments, folder, sampler, guidance, rescale, steps, latents_file, out):
    command = [str(arguments.millrace), "generate", "--pipeline", str(folder)]
    for prompt in PROMPTS:
        command += ["--prompt", prompt]
    command += ["--out", str(out), f"generate.sampler={sampler}", f"generate.guidance_scale={guidance}",
                f"generate.guidance_rescale={rescale}", f"generate.steps={steps}", f"generate.negative_prompt={NEGATIVE}",
                f"generate.initial_latents={latents_file}", "generate.save_latents=true", "run.device=cpu",
                "model.dtype=float32", *arguments.overrides]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stdout}{done.stderr}")
    images = [numpy.asarray(Image.open(out / f"{i:05d}.png").convert("RGB")) for i in range(len(PROMPTS))]
    return load_file(out / "latents.safetensors")["latents"], numpy.stack(images)


def cases_of(arguments):
    numbers = {name: [float(text) for text in getattr(arguments, name).split(",")] for name in ("guidance", "rescale", "steps")}
    for sampler in arguments.samplers.split(","):
        for guidance in numbers["guidance"]:
            for rescale in numbers["rescale"] if guidance > 1 else [0]:
                for steps in numbers["steps"]:
                    yield sampler, guidance, rescale, int(steps)


def main():
    arguments = parse_arguments()
    check_replay.silence()
    worst_latent, worst_pixel, cases = 0.0, 0, 0
    print(f"{'sampler':10} {'prediction':13} {'guidance':>8} {'rescale':>7} {'steps':>5} {'latent error':>13} {'png levels':>10}")
    with tempfile.TemporaryDirectory() as temporary:
        temporary = Path(temporary)
        for prediction in arguments.predictions.split(","):
            folder = with_prediction(arguments.pipeline, prediction, temporary / prediction)
            pipeline = diffusers.StableDiffusionPipeline.from_pretrained(
                folder, safety_checker=None, requires_safety_checker=False, torch_dtype=torch.float32)
            scheduler_config = pipeline.scheduler.config
            pipeline.set_progress_bar_config(disable=True)
            side = pipeline.unet.config.sample_size
            shape = (len(PROMPTS), pipeline.unet.config.in_channels, side, side)
            latents = torch.randn(shape, generator=torch.Generator().manual_seed(1))
            latents_file = temporary / "initial.safetensors"
            save_file({"latents": latents}, latents_file)
            for sampler, guidance, rescale, steps in cases_of(arguments):
                out = temporary / f"out-{cases}"
                expected, expected_images = reference_images(pipeline, scheduler_config, sampler, guidance, rescale, steps, latents)
                final, images = millrace_images(arguments, folder, sampler, guidance, rescale, steps, latents_file, out)
                difference = (final - expected).flatten(1).norm(dim=1) / expected.flatten(1).norm(dim=1)
                error = difference.max().item()
                levels = int(numpy.abs(images.astype(int) - expected_images.astype(int)).max())
                cases += 1
                worst_latent, worst_pixel = max(worst_latent, error), max(worst_pixel, levels)
                wrong = error > arguments.latent_limit or levels > arguments.pixel_limit
                print(f"{sampler:10} {prediction:13} {guidance:8g} {rescale:7g} {steps:5d} {error:13.2e} {levels:10d}"
                      f"{'  <- too far' if wrong else ''}", flush=True)
    good = worst_latent <= arguments.latent_limit and worst_pixel <= arguments.pixel_limit
    print(f"{cases} cases, worst latent error {worst_latent:.2e} (limit {arguments.latent_limit:g}), "
          f"worst pixel {worst_pixel} levels (limit {arguments.pixel_limit}): {'ok' if good else 'TOO FAR'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
