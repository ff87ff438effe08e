#!/usr/bin/env python3
"""Replays the first steps of a millrace training run in PyTorch, from the tensors that `record.steps` wrote.

    scripts/check_replay.py --millrace build/release/bin/millrace [--steps 4] [--ranks 1] [-- OVERRIDE...]
    scripts/check_replay.py --millrace ... -- objective.prediction=v_prediction objective.snr_gamma=5

Trains a tiny U-Net on archives (--archives, else made by millrace_shapes beside the program), every step recorded. Then
diffusers' U-Net with the same initial weights goes through the same inputs with torch.optim.AdamW, clip_grad_norm_ and
diffusers' EMAModel, and each recorded number and the exported weights must agree. The inputs are checked too: text and
latents against the archives' captions and images through transformers, Pillow and diffusers, and what was drawn at random
against its distribution. scripts/check_layouts.py does this for many combinations of keys.
Needs Python with torch, diffusers, transformers, safetensors, PyYAML and Pillow.
"""
import argparse
import collections
import contextlib
import copy
import io
import itertools
import json
import math
import os
import subprocess
import sys
import tarfile
import tempfile
import warnings
from pathlib import Path

import diffusers
import numpy
import torch
import transformers
import yaml
from diffusers.training_utils import EMAModel, compute_snr
from PIL import Image
from safetensors import safe_open

RESOLUTION = 32
LIMIT = 1e-4
WEIGHT_LIMIT = 1e-5  # absolute
HALF_LIMIT = 2e-3    # what comes from the encoders travels as float16
SIGMAS = 4           # a statistic of what was drawn at random, in its standard deviations

Row = collections.namedtuple("Row", "where what difference limit")


class Table:
    """Prints comparisons as they are made, or only those that fail, and remembers them."""

    def __init__(self, only_failures=False):
        self.rows, self.failures, self.only_failures = [], 0, only_failures
        if not only_failures:
            print(f"{'where':10} {'compared':38} {'difference':>10} {'limit':>8}")

    def add(self, where, what, difference, limit=LIMIT, note=""):
        good = difference <= limit  # NaN is not
        self.rows.append(Row(where, what, difference, limit))
        self.failures += not good
        if not good or not self.only_failures:
            print(f"{where:10} {what + note:38} {difference:10.2e} {limit:8.0e}{'' if good else '  <- too far'}", flush=True)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millrace", required=True, type=Path, help="the program")
    parser.add_argument("--archives", type=Path, help="folder of WebDataset archives with jpg or png, and txt")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="work here and leave the files")
    parser.add_argument("overrides", nargs="*", help="further keys for millrace train")
    return parser.parse_args()


def run(*command):
    command = [str(word) for word in command]
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def make_pipeline(millrace, folder):
    run(millrace, "init", "--preset", "tiny", "--out", folder / "pipeline", "seed=11")
    return folder / "pipeline"


def make_archives(millrace, folder):
    archives = folder / "archives"
    run(millrace.with_name("millrace_shapes"), "make", "--out", archives, "--count", 64, "--per-archive", 32, "--side", 64)
    return archives


def train(millrace, pipeline, archives, steps, overrides, folder, ranks=1):
    """Into folder/run, with the weights exported to folder/raw and folder/ema."""
    launcher = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", ranks] if ranks > 1 else []
    # With the default eps of 1e-8, a weight whose gradient is little more than rounding moves by up to lr, and PyTorch with
    # other micro-batches disagrees with itself by as much as with us.
    run(*launcher, millrace, "train", f"run.dir={folder / 'run'}", f"model.pipeline={pipeline}", "model.unet.init=pretrained",
        "run.device=cpu", f"data.train.path={archives}", f"transform.resolution={RESOLUTION}", "encode.batch_size=8",
        "batch.global=8", "batch.micro=4", f"duration={steps} steps", f"record.steps={list(range(1, steps + 1))}",
        "optim.lr=1e-3", "optim.eps=1e-5", "optim.warmup=2 steps", "optim.weight_decay=0.3", "log.ids=true",
        "log.every=1 steps", *overrides)
    for weights in ("raw", "ema"):
        run(millrace, "export", "--run", folder / "run", "--out", folder / weights, f"weights={weights}")


def read_record(run_dir, step):
    with safe_open(run_dir / f"records/step-{step:08d}.safetensors", "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}
        return tensors, file.metadata()


def read_json_lines(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def difference(mine, reference):
    """Length of the difference over the reference's."""
    if mine.shape != reference.shape:
        return math.inf
    return ((mine - reference).norm() / reference.norm()).item()


def weights_difference(mine, reference):
    """The same over all tensors of a network."""
    if mine.keys() != reference.keys():
        return math.inf
    squares = sum((mine[name] - tensor).double().square().sum() for name, tensor in reference.items())
    return (squares / sum(tensor.double().square().sum() for tensor in reference.values())).sqrt().item()


def largest_difference(mine, reference):
    """Of a weight, over all tensors of a network."""
    if mine.keys() != reference.keys():
        return math.inf
    return torch.stack([(mine[name] - tensor).abs().max() for name, tensor in reference.items()]).max().item()


def exported_weights(folder, name):
    unet = diffusers.UNet2DConditionModel.from_pretrained(folder / name / "unet")
    return {key: tensor.detach() for key, tensor in unet.named_parameters()}


def learning_rate(optim, step, steps):
    warmup = int(str(optim["warmup"]).split()[0])
    if step < warmup:
        return optim["lr"] * step / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    shape = dict(constant=1, linear=1 - progress, cosine=(1 + math.cos(math.pi * progress)) / 2)
    return optim["lr"] * shape[optim["schedule"]]


def reference_target(scheduler, objective, record):
    if objective["prediction"] == "epsilon":
        return record["noise"]
    return scheduler.get_velocity(record["latents"], record["noise"], record["timesteps"])


def reference_weight(scheduler, objective, timesteps):
    if objective["snr_gamma"] is None:
        return torch.ones(len(timesteps))
    snr = compute_snr(scheduler, timesteps)
    return snr.clamp(max=objective["snr_gamma"]) / (snr if objective["prediction"] == "epsilon" else snr + 1)


def check_objective(table, where, scheduler, objective, record):
    if objective["input_perturbation"] == 0:
        noisy = scheduler.add_noise(record["latents"], record["noise"], record["timesteps"])
        table.add(where, "noisy", difference(record["noisy"], noisy))
    table.add(where, "target", difference(record["target"], reference_target(scheduler, objective, record)))
    table.add(where, "weight", difference(record["weight"], reference_weight(scheduler, objective, record["timesteps"])))


def read_samples(archives):
    """(image, caption) by id."""
    samples = {}
    for archive in sorted(archives.glob("*.tar")):
        with tarfile.open(archive) as tar:
            for member in tar:
                key, suffix = member.name.split(".", 1)
                samples.setdefault(f"{archive.stem}/{key}", {})[suffix] = tar.extractfile(member).read()
    return {key: (Image.open(io.BytesIO(parts.get("jpg") or parts.get("png"))).convert("RGB"), parts["txt"].decode())
            for key, parts in samples.items()}


def to_tensor(image):
    """Shorter side to the resolution and the middle, in [-1, 1]."""
    width, height = (max(RESOLUTION, int(side * RESOLUTION / min(image.size))) for side in image.size)
    left, top = (width - RESOLUTION) // 2, (height - RESOLUTION) // 2
    image = image.resize((width, height), Image.BILINEAR).crop((left, top, left + RESOLUTION, top + RESOLUTION))
    return torch.from_numpy(numpy.array(image)).permute(2, 0, 1).float() / 127.5 - 1


@torch.no_grad()
def check_inputs(table, pipeline, samples, objective, records):
    """Text is a caption's states or the empty caption's; latents are a draw from their image's posterior: returns all draws."""
    def states(captions):
        ids = pipeline.tokenizer(captions, padding="max_length", max_length=77, truncation=True, return_tensors="pt").input_ids
        return pipeline.text_encoder(ids).last_hidden_state

    empty, text_error, dropped, draws = states([""])[0], 0.0, 0, []
    for record, metadata in records:
        pairs = [samples[key] for key in json.loads(metadata["ids"])]
        moments = pipeline.vae.encode(torch.stack([to_tensor(image) for image, _ in pairs])).latent_dist
        draws.append((record["latents"] / pipeline.vae.config.scaling_factor - moments.mean) / moments.std)
        for text, own in zip(record["text"], states([caption for _, caption in pairs])):
            errors = difference(text, own), difference(text, empty)
            text_error = max(text_error, min(errors))
            dropped += errors[1] < errors[0]
    draws = torch.cat(draws)
    table.add("inputs", "text", text_error, HALF_LIMIT)
    share, count = objective["caption_dropout"], len(draws)
    sigma = (count * share * (1 - share))**0.5 or 1e-9
    table.add("draws", "captions dropped", abs(dropped - count * share) / sigma, SIGMAS, f": {dropped} of {count}")
    return draws


def check_timesteps(table, objective, records, steps):
    """Uniform, or one in each of as many parts of the range as the batch has samples."""
    timesteps = torch.stack([record["timesteps"] for record, _ in records])
    table.add("draws", "timesteps out of range", ((timesteps < 0) | (timesteps >= steps)).sum().item(), 0)
    mean, sigma = (steps - 1) / 2, steps / (12 * timesteps.numel())**0.5
    table.add("draws", "timesteps: mean", abs(timesteps.double().mean().item() - mean) / sigma, SIGMAS)
    if objective["timesteps"] == "stratified":
        count = timesteps.shape[1]
        bounds = steps * torch.arange(count + 1) / count  # the sorted timesteps lie in one part each
        ordered = timesteps.sort(dim=1).values
        outside = (ordered < bounds[:-1].floor()) | (ordered >= bounds[1:].ceil())
        table.add("draws", "timesteps outside of their parts", outside.sum().item(), 0)


def check_noise(table, objective, scheduler, records, posterior):
    """What was drawn has the moments of unit normals, and two draws have nothing to do with each other."""
    def column(name):
        return torch.cat([record[name] for record, _ in records])

    noise, offset = column("noise"), objective["noise_offset"]
    channel_means = noise.mean(dim=(2, 3), keepdim=True)
    pixels = noise[0, 0].numel()
    # The offset adds to the means of channels alone; without it their variance is 1 / pixels.
    normals = {"posterior": posterior, "noise": noise - channel_means + channel_means / (1 + pixels * offset**2)**0.5,
               "noise's channel means": channel_means / (1 / pixels + offset**2)**0.5}
    if objective["input_perturbation"] > 0:
        signal = scheduler.alphas_cumprod[column("timesteps")].view(-1, 1, 1, 1)
        added = (column("noisy") - signal.sqrt() * column("latents")) / (1 - signal).sqrt() - noise
        normals["input perturbation"] = added / objective["input_perturbation"]
    for name, draws in normals.items():
        count = draws.numel()
        table.add("draws", f"{name}: |mean|", abs(draws.mean().item()) * count**0.5, SIGMAS)
        table.add("draws", f"{name}: |variance - 1|", abs(draws.var().item() - 1) * (count / 2)**0.5, SIGMAS)
        table.add("draws", f"{name}: largest", draws.abs().max().item(), 6)
    del normals["noise's channel means"]
    for (one, first), (other, second) in itertools.combinations(normals.items(), 2):
        table.add("draws", f"{one} x {other}", abs((first * second).mean().item()) * first.numel()**0.5, SIGMAS)


def check_steps(table, folder, config, scheduler, unet, records):
    optim, clip, steps = config["optim"], config["optim"]["clip"], len(records)
    optimizer = torch.optim.AdamW(unet.parameters(), betas=tuple(optim["betas"]), eps=optim["eps"],
                                  weight_decay=optim["weight_decay"])
    ema = EMAModel(unet.parameters(), decay=config["ema"]["decay"])
    if not config["ema"]["warmup"]:
        ema.optimization_step = 10**9  # EMAModel always warms up: long past it, its decay is the given one
    metrics, ids = read_json_lines(folder / "run/metrics.jsonl"), read_json_lines(folder / "run/ids.jsonl")
    for step, (record, metadata) in enumerate(records, start=1):
        where, rate = f"step {step}", learning_rate(optim, step, steps)
        check_objective(table, where, scheduler, config["objective"], record)
        prediction = unet(record["noisy"], record["timesteps"], record["text"]).sample
        table.add(where, "prediction", difference(record["prediction"], prediction.detach()))
        loss = (record["weight"] * (prediction - record["target"]).square().mean(dim=(1, 2, 3))).mean()
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(unet.parameters(), math.inf if clip is None else clip).item()
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        ema.step(unet.parameters())
        table.add(where, "loss", abs(record["loss"].item() / loss.item() - 1), note=f" {loss.item():.6f}")
        table.add(where, "grad_norm", abs(record["grad_norm"].item() / norm - 1), note=f" {norm:.6f}")
        line = metrics[step - 1]
        errors = abs(line["loss"] / loss.item() - 1), abs(line["grad_norm"] / norm - 1), abs(line["lr"] - rate) / (rate or 1)
        table.add(where, "metrics: loss, grad_norm, lr", max(errors))
        same = ids[step - 1] == {"step": step, "ids": json.loads(metadata["ids"])} and metadata["step"] == str(step)
        table.add(where, "ids of record and ids.jsonl", float(not same), 0)
    return ema


def check_weights(table, folder, initial, unet, ema):
    expected = {"raw": dict(unet.named_parameters())}
    expected["ema"] = dict(zip(expected["raw"], ema.shadow_params))
    for name, weights in expected.items():
        mine = exported_weights(folder, name)
        reference = {key: tensor.detach() for key, tensor in weights.items()}
        table.add("export", f"{name} weights", weights_difference(mine, reference))
        table.add("export", f"{name} weights: largest", largest_difference(mine, reference), WEIGHT_LIMIT)
        change = {key: tensor - initial[key] for key, tensor in reference.items()}
        table.add("export", f"{name} weights' change since step 0",
                  weights_difference({key: tensor - initial[key] for key, tensor in mine.items()}, change), 1e-2)


def replay(table, folder, pipeline, samples):
    """The training in folder/run; the pipeline's U-Net is left as it is."""
    config = yaml.safe_load((folder / "run/config.yaml").read_text())
    config["optim"]["eps"], config["optim"]["lr"] = float(config["optim"]["eps"]), float(config["optim"]["lr"])
    records = [read_record(folder / "run", step) for step in config["record"]["steps"]]
    scheduler = diffusers.DDPMScheduler.from_pretrained(folder / "raw/scheduler")
    posterior = check_inputs(table, pipeline, samples, config["objective"], records)
    check_timesteps(table, config["objective"], records, scheduler.config.num_train_timesteps)
    check_noise(table, config["objective"], scheduler, records, posterior)
    initial = {key: tensor.detach() for key, tensor in pipeline.unet.named_parameters()}
    unet = copy.deepcopy(pipeline.unet)
    ema = check_steps(table, folder, config, scheduler, unet, records)
    check_weights(table, folder, initial, unet, ema)


def check(arguments, folder):
    millrace = arguments.millrace.resolve()
    pipeline, archives = make_pipeline(millrace, folder), arguments.archives or make_archives(millrace, folder)
    train(millrace, pipeline, archives, arguments.steps, arguments.overrides, folder, arguments.ranks)
    table = Table()
    replay(table, folder, diffusers.StableDiffusionPipeline.from_pretrained(pipeline), read_samples(archives))
    print(f"{len(table.rows)} comparisons, {table.failures} beyond their limits: {'ok' if table.failures == 0 else 'FAILED'}")
    return 0 if table.failures == 0 else 1


def silence():
    warnings.filterwarnings("ignore")
    for library in (diffusers, transformers):
        library.utils.logging.set_verbosity_error()
        library.utils.logging.disable_progress_bar()


@contextlib.contextmanager
def workshop(keep):
    """The folder `keep`, which must be new, or else one that goes away afterwards."""
    if keep:
        keep.mkdir(parents=True)
        yield keep
    else:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)


def main():
    arguments = parse_arguments()
    silence()
    with workshop(arguments.keep) as folder:
        try:
            return check(arguments, folder)
        except RuntimeError as error:
            sys.exit(str(error))


if __name__ == "__main__":
    sys.exit(main())
