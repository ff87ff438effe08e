#!/usr/bin/env python3
"""Reference numbers for noise schedules, loss weights, timesteps and samplers, out of diffusers in double precision.

Writes tests/golden/diffusion/reference.json. The model is a formula, so that both sides can compute it.
"""
import contextlib
import json
import math
import warnings
from pathlib import Path

import diffusers
import numpy
import torch
from diffusers import (DDIMScheduler, DDPMScheduler, DPMSolverMultistepScheduler, EulerDiscreteScheduler, PNDMScheduler,
                       UniPCMultistepScheduler)
from diffusers.training_utils import compute_snr

warnings.filterwarnings("ignore")
diffusers.utils.logging.set_verbosity_error()
OUT = Path(__file__).resolve().parents[2] / "tests/golden/diffusion"
CLASSES = [DDIMScheduler, PNDMScheduler, EulerDiscreteScheduler, DPMSolverMultistepScheduler, UniPCMultistepScheduler]

COMMON = dict(num_train_timesteps=1000, beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear",
              trained_betas=None, clip_sample=False, set_alpha_to_one=False, steps_offset=1, skip_prk_steps=True)
FILES = {  # the published scheduler_config.json files, and a zero-terminal-SNR one
    "sd15": dict(COMMON, _class_name="PNDMScheduler", _diffusers_version="0.7.0.dev0"),
    "sd21_base": dict(COMMON, _class_name="PNDMScheduler", prediction_type="epsilon", _diffusers_version="0.10.0.dev0"),
    "sd21": dict(COMMON, _class_name="DDIMScheduler", prediction_type="v_prediction", _diffusers_version="0.8.0"),
    "zero_snr": dict(COMMON, _class_name="DDIMScheduler", prediction_type="v_prediction", rescale_betas_zero_snr=True,
                     timestep_spacing="trailing"),
    # As EulerDiscreteScheduler.save_pretrained leaves out what the class has not: DDIM then clips the latents it predicts.
    "bare": dict(_class_name="EulerDiscreteScheduler", num_train_timesteps=1000, beta_start=0.00085, beta_end=0.012,
                 beta_schedule="scaled_linear", prediction_type="epsilon"),
}


@contextlib.contextmanager
def double_precision():
    """What diffusers computes in float32 it computes in float64 here. In float32 its schedules depend on the machine: the
    vector width of torch.linspace shows in the last bits of the betas, from there in the seventh digit of alphas_cumprod
    and, near zero terminal SNR, in the fifth."""
    single = torch.float32
    torch.float32 = torch.float64
    try:
        yield
    finally:
        torch.float32 = single


def model(x, t):
    t = float(t)
    return torch.tanh(0.8 * x + 0.3 * math.sin(0.01 * t)) + 0.2 * torch.cos(1.3 * x + 0.002 * t)


def sample(scheduler, steps):
    scheduler.set_timesteps(steps)
    i = torch.arange(24, dtype=torch.float64)
    x = (1.2 * torch.sin(1.7 * i + 0.3)).float().double().reshape(1, 4, 2, 3) * scheduler.init_noise_sigma
    for t in scheduler.timesteps:
        x = scheduler.step(model(scheduler.scale_model_input(x, t), t), t, x).prev_sample
    return x


def sampler_case(file, cls, steps, **changes):
    config = dict(FILES[file], **changes)
    with double_precision():
        scheduler = cls.from_config(config)
        x = sample(scheduler, steps)
    assert x.dtype == torch.float64 and torch.isfinite(x).all(), (file, cls, steps, changes)
    return dict(config=config, to=cls.__name__, steps=steps, timesteps=[float(t) for t in scheduler.timesteps],
                initial_sigma=float(scheduler.init_noise_sigma), final=x.flatten().tolist())


def sampler_cases():
    cases = [sampler_case(f, c, n) for f in FILES for c in CLASSES for n in (7, 20, 50)]
    cases += [sampler_case("sd15", c, 1) for c in CLASSES]
    for cls in CLASSES:
        for spacing in ("leading", "trailing", "linspace"):
            cases += [sampler_case(f, cls, 20, timestep_spacing=spacing) for f in ("sd15", "sd21")]
    for cls in CLASSES[2:]:
        for n in (7, 20):
            cases.append(sampler_case("sd15", cls, n, use_karras_sigmas=True))
            cases.append(sampler_case("sd21", cls, n, final_sigmas_type="sigma_min"))
            cases.append(sampler_case("sd21", cls, n, final_sigmas_type="sigma_min", use_karras_sigmas=True))
    for n in (7, 20):
        cases.append(sampler_case("sd15", PNDMScheduler, n, skip_prk_steps=False))
        cases.append(sampler_case("sd21", PNDMScheduler, n, skip_prk_steps=False, set_alpha_to_one=True))
        cases.append(sampler_case("sd21", DDIMScheduler, n, set_alpha_to_one=True))
        cases.append(sampler_case("bare", DDIMScheduler, n, clip_sample_range=1.7))
        cases.append(sampler_case("sd15", DPMSolverMultistepScheduler, n, lower_order_final=False))
        cases.append(sampler_case("sd15", DPMSolverMultistepScheduler, n, final_sigmas_type="sigma_min",
                                  euler_at_final=True))
    cases += [sampler_case("sd15", c, 12, beta_schedule="squaredcos_cap_v2") for c in CLASSES]
    for cls in (EulerDiscreteScheduler, DPMSolverMultistepScheduler):  # UniPC's own index fails at equal timesteps
        cases.append(sampler_case("sd15", cls, 12, beta_schedule="squaredcos_cap_v2", use_karras_sigmas=True))
    return cases


def timestep_sums():
    """Per class and spacing, sum of (position + 1) * timestep for 1 .. 300 steps, without numpy.arange's phantom -1."""
    sums = {}
    for cls in CLASSES:
        for spacing in ("leading", "trailing", "linspace"):
            scheduler = cls.from_config(dict(FILES["sd15"], timestep_spacing=spacing))
            row = []
            for n in range(1, 301):
                scheduler.set_timesteps(n)
                t = scheduler._timesteps[::-1] if cls is PNDMScheduler else scheduler.timesteps.numpy()
                t = t.astype(numpy.float64)[:n] if spacing == "trailing" and cls is not PNDMScheduler else t[t >= 0]
                row.append(round(float((numpy.arange(1, len(t) + 1) * t).sum()), 3))
            sums[f"{cls.__name__} {spacing}"] = row
    return sums


def schedules():
    rows = []
    picks = list(range(0, 1000, 37)) + [500, 997, 998, 999]
    for changes in ({}, dict(beta_schedule="linear", beta_start=1e-4, beta_end=0.02),
                    dict(beta_schedule="squaredcos_cap_v2"), dict(rescale_betas_zero_snr=True)):
        config = dict(COMMON, _class_name="DDPMScheduler", prediction_type="v_prediction", **changes)
        t = torch.tensor(picks)
        with double_precision():
            ddpm = DDPMScheduler.from_config(config)
            assert ddpm.alphas_cumprod.dtype == torch.float64
        snr = compute_snr(ddpm, t)  # the roots of these in float32
        rows.append(dict(config=config, timesteps=picks, alphas_cumprod=ddpm.alphas_cumprod[t].tolist(),
                         snr=snr.tolist()))
    return rows


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    reference = dict(versions=dict(diffusers=diffusers.__version__, torch=torch.__version__, numpy=numpy.__version__),
                     schedules=schedules(), timestep_sums=timestep_sums(), samplers=sampler_cases())
    path = OUT / "reference.json"
    path.write_text(json.dumps(reference, separators=(",", ":")) + "\n")
    print(path, path.stat().st_size, "bytes,", len(reference["samplers"]), "sampler cases")


if __name__ == "__main__":
    main()
