#!/usr/bin/env python3
"""The Python counterpart of `millrace bench step`: one optimizer step of the pipeline's U-Net with diffusers.

Random latent moments and text embeddings; sample the posterior, add noise, drop captions, forward, backward, clip, AdamW, EMA.
Prints the same JSON lines {"bench", "figure", "unit", "median", "min", "max", "runs"}, measured alike: inputs come from pinned host
memory, whole steps are timed with one wait for the GPU at the end of a run, the stages in steps of their own.
  default      diffusers' training recipe: eager, torch.optim.AdamW, EMAModel; bfloat16 = autocast over fp32 weights
  --tuned      channels_last, fused AdamW, EMA by foreach: what a careful user turns on
  --compile    the same and torch.compile
  --ranks N    so many processes on this machine under DistributedDataParallel, over gloo on the CPU; --batch is each one's

    train_step_bench.py --pipeline DIR [--batch 32] [--resolution 32] [--device cpu] [--dtype float32] [--threads 1]
                        [--runs 5] [--steps 5] [--warm-up SECONDS] [--tuned | --compile] [--ranks N]
"""
import argparse
import json
import tempfile
import time
from pathlib import Path

import torch
from diffusers import DDPMScheduler, UNet2DConditionModel
from diffusers.training_utils import EMAModel

from figures import tell

TOKENS = 77
CAPTION_DROPOUT = 0.1


class Trainer:
    def __init__(self, options):
        tuned = options.tuned or options.compile
        self.device = torch.device(options.device)
        self.autocast = torch.autocast(self.device.type, torch.bfloat16, enabled=options.dtype == "bfloat16")
        configs = {name: json.loads((Path(options.pipeline) / name / "config.json").read_text()) for name in ("unet", "vae", "text_encoder")}
        torch.manual_seed(0)
        self.unet = UNet2DConditionModel.from_config(configs["unet"]).to(self.device).train()
        if tuned:
            self.unet = self.unet.to(memory_format=torch.channels_last)
        self.parameters = list(self.unet.parameters())
        self.optimizer = torch.optim.AdamW(self.parameters, lr=1e-4, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01, fused=tuned or None)
        self.ema = EMAModel(self.parameters, decay=0.9999, foreach=tuned)
        self.forward = torch.compile(self.unet) if options.compile else self.unet
        if options.ranks > 1:
            self.forward = torch.nn.parallel.DistributedDataParallel(self.forward)
        self.schedule = DDPMScheduler.from_pretrained(options.pipeline, subfolder="scheduler")
        side = options.resolution // 2 ** (len(configs["vae"]["block_out_channels"]) - 1)
        self.scaling_factor = configs["vae"]["scaling_factor"]
        self.moments = self.host(torch.randn(options.batch, 2 * configs["vae"]["latent_channels"], side, side).half())
        self.text = self.host(torch.randn(options.batch, TOKENS, configs["text_encoder"]["hidden_size"]).half())
        self.null_text = self.text[0].to(self.device)

    def host(self, tensor):
        """As a loader with pin_memory hands it over."""
        return tensor.pin_memory() if self.device.type == "cuda" else tensor

    def make_input(self):
        mean, logvar = self.moments.to(self.device, non_blocking=True).float().chunk(2, dim=1)
        latents = (mean + torch.exp(0.5 * logvar.clamp(-30, 20)) * torch.randn_like(mean)) * self.scaling_factor
        noise = torch.randn_like(latents)
        timesteps = torch.randint(self.schedule.config.num_train_timesteps, (len(latents),), device=self.device)
        dropped = torch.rand(len(latents), device=self.device) < CAPTION_DROPOUT
        text = torch.where(dropped[:, None, None], self.null_text, self.text.to(self.device, non_blocking=True)).float()
        target = self.schedule.get_velocity(latents, noise, timesteps) if self.schedule.config.prediction_type == "v_prediction" else noise
        return self.schedule.add_noise(latents, noise, timesteps), timesteps, text, target

    def stages(self):
        """Yields the name of each stage of one step after its work."""
        noisy, timesteps, text, target = self.make_input()
        self.optimizer.zero_grad()
        yield "input"
        with self.autocast:
            prediction = self.forward(noisy, timesteps, text).sample
        loss = torch.nn.functional.mse_loss(prediction.float(), target)
        yield "forward"
        loss.backward()
        yield "backward"
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        self.ema.step(self.parameters)
        yield "update"

    def synchronize(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def run(self, steps):
        """Seconds of some steps, without waiting for the GPU between them."""
        self.synchronize()
        started = time.perf_counter()
        for _ in range(steps):
            for _ in self.stages():
                pass
        self.synchronize()
        return time.perf_counter() - started

    def run_stages(self, steps):
        """Seconds of each stage over as many steps, each of which ends with waiting for the GPU."""
        seconds = dict.fromkeys(("input", "forward", "backward", "update"), 0.0)
        for _ in range(steps):
            now = time.perf_counter()
            for stage in self.stages():
                self.synchronize()
                then, now = now, time.perf_counter()
                seconds[stage] += now - then
        return seconds


def measure(rank, options, meeting):
    torch.set_num_threads(options.threads)
    if options.ranks > 1:
        torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=options.ranks)
    trainer = Trainer(options)
    trainer.run(options.steps)  # compiles, too
    started = time.perf_counter()
    while options.ranks == 1 and time.perf_counter() - started < options.warm_up:
        trainer.run(options.steps)
    totals, runs = [], []
    for _ in range(options.runs):
        totals.append(trainer.run(options.steps))
        runs.append(trainer.run_stages(options.steps))
    if options.ranks > 1:
        torch.distributed.destroy_process_group()
    if rank > 0:
        return
    figures = {"steps": ("steps/s", [options.steps / total for total in totals]),
               "images": ("images/s", [options.steps * options.batch * options.ranks / total for total in totals]),
               **{stage: ("ms", [1000 * run[stage] / options.steps for run in runs]) for stage in runs[0]}}
    for figure, (unit, values) in figures.items():
        tell("step", figure, unit, values)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pipeline", required=True)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--resolution", type=int, default=32)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--warm-up", type=float, default=0, help="seconds of load between the first run, which may compile, and the measured ones")
    parser.add_argument("--tuned", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--ranks", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.ranks > 1:
            torch.multiprocessing.spawn(measure, (options, f"{folder}/meeting"), options.ranks)
        else:
            measure(0, options, None)


if __name__ == "__main__":
    main()
