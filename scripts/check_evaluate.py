#!/usr/bin/env python3
"""`millrace evaluate` against clean-fid, torch-fidelity and torchmetrics, on the same pictures and networks.

  scripts/check_evaluate.py --millrace build/release/bin/millrace [--pictures 40] [--seed 7]

The network is torchvision's Inception v3 with random weights, whole (2,048 features, more than pictures: singular covariances) and
followed by a projection on 24 features. CLIP is the folder of the tests. Numbers have to agree within 1e-3 of their size (CLIP scores
within 1e-4), for one rank and for three. A KID is a difference of means of kernels, and may be nearly 0: it has to be within 1e-6 of
numpy's in float64, and the packages, which sum in float32, within 1e-6 of the kernels' mean beside the 1e-3.
"""
import argparse
import json
import subprocess
import tempfile
import warnings
from pathlib import Path

import numpy
import torch
import torchvision
from cleanfid import fid as cleanfid
from PIL import Image
from torch_fidelity.metric_fid import fid_features_to_statistics, fid_statistics_to_metric
from torch_fidelity.metric_kid import kid_features_to_metric
from torchmetrics.image.fid import FrechetInceptionDistance
from torchmetrics.image.kid import KernelInceptionDistance
from torchmetrics.multimodal.clip_score import CLIPScore
from transformers import CLIPModel, CLIPProcessor, CLIPTokenizer
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

warnings.filterwarnings("ignore")
ROOT = Path(__file__).resolve().parents[1]
CLIP = ROOT / "tests/golden/evaluate/clip"


def make_pictures(folder, count, random, shift):
    """Smooth fields, noise and a hard edge, of sizes from 20 to 700 pixels; `shift` moves the colours."""
    folder.mkdir()
    for n in range(count):
        width, height = random.integers(20, 700, 2)
        y, x = numpy.mgrid[0:height, 0:width]
        fields = [127 + shift * (c - 1) + 110 * numpy.sin(x / random.uniform(3, 90) + y / random.uniform(3, 90)) for c in range(3)]
        levels = numpy.stack(fields, -1) + random.normal(0, random.uniform(0, 30), (height, width, 3))
        levels[: height // random.integers(2, 6), : width // 3] = random.integers(0, 256, 3)
        Image.fromarray(numpy.clip(levels, 0, 255).astype(numpy.uint8)).save(folder / f"{n:04}.png")


class Features(torch.nn.Module):
    """(B, 3, 299, 299) in 0..255 -> (B, features)."""

    def __init__(self, features):
        super().__init__()
        self.inception = torchvision.models.inception_v3(weights=None, aux_logits=False, init_weights=False)
        self.inception.fc = torch.nn.Identity() if features == 2048 else torch.nn.Linear(2048, features)
        for p in self.inception.parameters():
            if p.dim() == 4:
                torch.nn.init.kaiming_normal_(p)

    def forward(self, x):
        return self.inception((x - 127.5) / 127.5)


def read_clean(path):
    """Pillow's bicubic on floats, as clean-fid resizes."""
    pixels = numpy.asarray(Image.open(path).convert("RGB"))
    planes = [Image.fromarray(pixels[:, :, c].astype(numpy.float32), mode="F").resize((299, 299), Image.BICUBIC) for c in range(3)]
    return torch.from_numpy(numpy.clip(numpy.stack([numpy.asarray(plane) for plane in planes]), 0, 255))


def batches(folder):
    paths = sorted(folder.glob("*.png"))
    return [torch.stack([read_clean(path) for path in paths[i:i + 16]]) for i in range(0, len(paths), 16)]


def kid_in_float64(ours, theirs):
    """The unbiased estimate over all pictures, and the mean of the kernels whose difference it is."""
    def kernels(a, b):
        return (a.astype(numpy.float64) @ b.astype(numpy.float64).T / a.shape[1] + 1) ** 3

    def mean_of_others(a):
        k = kernels(a, a)
        return (k.sum() - numpy.trace(k)) / (len(a) * (len(a) - 1))

    between = kernels(ours, theirs).mean()
    return mean_of_others(ours) + mean_of_others(theirs) - 2 * between, between


def peers(network, folders, count):
    """Of each package: (FID, KID); KID in float64, and the size of its kernels."""
    with torch.no_grad():
        features = [torch.cat([network(batch) for batch in batches(folder)]) for folder in folders]
        quiet = dict(mode="clean", num_workers=0, batch_size=16, device=torch.device("cpu"), verbose=False)
        found = {"clean-fid": (
            cleanfid.compute_fid(str(folders[0]), str(folders[1]), custom_feat_extractor=network, use_dataparallel=False, **quiet),
            cleanfid.kernel_distance(*(f.numpy() for f in features), num_subsets=1, max_subset_size=count))}
        statistics = [fid_features_to_statistics(f) for f in features]
        kid = kid_features_to_metric(*features, kid_subsets=1, kid_subset_size=count, kid_kernel="poly", kid_kernel_poly_degree=3,
                                     kid_kernel_poly_gamma=None, kid_kernel_poly_coef0=1, rng_seed=0, verbose=False)
        found["torch-fidelity"] = (fid_statistics_to_metric(*statistics, False)["frechet_inception_distance"],
                                   kid["kernel_inception_distance_mean"])
        metrics = (FrechetInceptionDistance(feature=network, input_img_size=(3, 299, 299)),
                   KernelInceptionDistance(feature=network, subsets=1, subset_size=count))
        for metric in metrics:
            for folder, real in zip(folders, (False, True)):
                for batch in batches(folder):
                    metric.update(batch, real=real)
        found["torchmetrics"] = (metrics[0].compute().item(), metrics[1].compute()[0].item())
    return found, *kid_in_float64(*(f.numpy() for f in features))


class FeaturesAlone(CLIPModel):
    """torchmetrics 1.9 expects tensors, where transformers 5 returns them in an object."""

    def get_image_features(self, *inputs, **named):
        return super().get_image_features(*inputs, **named).pooler_output

    def get_text_features(self, *inputs, **named):
        return super().get_text_features(*inputs, **named).pooler_output


def clip_of_torchmetrics(folder, captions):
    # Pillow's resizing, as CLIP was trained; torchvision's of tensors, transformers' other choice, differs in the third digit.
    processor = CLIPProcessor(CLIPImageProcessorPil.from_pretrained(CLIP), CLIPTokenizer.from_pretrained(CLIP))
    metric = CLIPScore(model_name_or_path=lambda: (FeaturesAlone.from_pretrained(CLIP, dtype=torch.float32), processor))
    scores = []
    for path, caption in zip(sorted(folder.glob("*.png")), captions):
        pixels = torch.from_numpy(numpy.asarray(Image.open(path).convert("RGB")).copy()).permute(2, 0, 1)
        metric.reset()
        scores.append(metric(pixels, caption).item())  # cut at 0 for each picture, as the paper's and ours
    return sum(scores) / len(scores)


def ours(args, ranks, folders, network, out):
    launcher = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(ranks)] if ranks > 1 else []
    done = subprocess.run([*launcher, args.millrace, "evaluate", "--images", str(folders[0]), "--out", str(out), "run.device=cpu",
                           f"evaluate.prompts={out.parent / 'captions.txt'}", f"evaluate.features={network}",
                           f"evaluate.reference={folders[1]}", f"evaluate.clip={CLIP}", "threads=1"],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    return json.loads((out / "evaluation.jsonl").read_text().splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millrace", required=True)
    parser.add_argument("--pictures", type=int, default=40)
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    random = numpy.random.default_rng(args.seed)
    torch.manual_seed(args.seed)
    worst = 0.0
    with tempfile.TemporaryDirectory() as work:
        work = Path(work)
        folders = work / "made", work / "reference"
        make_pictures(folders[0], args.pictures, random, 0)
        make_pictures(folders[1], args.pictures, random, 25)
        captions = [f"a picture of {random.integers(0, 1000)} things" for _ in range(args.pictures)]
        (work / "captions.txt").write_text("\n".join(captions) + "\n")
        clip = clip_of_torchmetrics(folders[0], captions)
        for features in (24, 2048):
            network = Features(features).eval()
            torch.jit.trace(network, torch.zeros(2, 3, 299, 299)).save(work / "network.pt")
            theirs, kid_of_numpy, kernels = peers(network, folders, args.pictures)
            for ranks in (1, 3):
                line = ours(args, ranks, folders, work / "network.pt", work / f"scores-{features}-{ranks}")
                off = abs(line["kid"] - kid_of_numpy)
                print(f"{features} features, {ranks} ranks, numpy: KID {line['kid']:.8f} (theirs {kid_of_numpy:.8f}, off {off:.1e})")
                assert off < 1e-6, "KID"
                for name, (fid, kid) in theirs.items():
                    off = abs(line["fid"] / fid - 1), max(0, abs(line["kid"] - kid) - 1e-6 * kernels) / abs(kid)
                    print(f"{features} features, {ranks} ranks, {name}: FID {line['fid']:.6g} (theirs {fid:.6g}, off {off[0]:.1e}), "
                          f"KID {line['kid']:.6g} (theirs {kid:.6g}, off {off[1]:.1e})")
                    worst = max(worst, *off)
                off = abs(line["clip_score"] - clip)
                print(f"{ranks} ranks, torchmetrics: CLIP score {line['clip_score']:.6f} (theirs {clip:.6f}, off {off:.1e})")
                assert off < 1e-4, "CLIP score"
    assert worst < 1e-3, f"off by {worst:.2g} of its size"
    print("evaluate agrees with clean-fid, torch-fidelity and torchmetrics")


if __name__ == "__main__":
    main()
