#!/usr/bin/env python3
"""Compares the parts of millrace with diffusers, transformers and Pillow: `probe` and `tokenize` against the references.

    scripts/check_probe.py --millrace build/release/bin/millrace [--parts unet,vae,text,transform,tokenize] [--seed 7]

Makes small random models in the shapes and file layouts that are found in the wild (SD 1, SD 2, odd ones; fp16, sharded,
old names), runs both sides on the CPU in fp32, prints one row per comparison and ends with 1 when one is too far off.
Needs Python with torch, diffusers, transformers, safetensors, Pillow and scikit-image.
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
import transformers
from PIL import Image
from safetensors.torch import load_file, save_file
from skimage import data as photos

import check_replay

OUTPUT_LIMIT = 2e-4    # largest difference over the largest value
GRADIENT_LIMIT = 1e-3  # the same for each parameter; gradients below 1e-3 of the largest count as that large

SMALL_UNET = dict(sample_size=16, norm_num_groups=8, layers_per_block=2, block_out_channels=(32, 64, 64, 64))
UNETS = {
    "sd1": dict(SMALL_UNET, attention_head_dim=8, cross_attention_dim=48, use_linear_projection=False),
    "sd2": dict(SMALL_UNET, attention_head_dim=[2, 4, 8, 8], cross_attention_dim=64, use_linear_projection=True,
                upcast_attention=True),
    "odd": dict(sample_size=12, norm_num_groups=4, layers_per_block=1, block_out_channels=(24, 48, 40),
                attention_head_dim=[3, 6, 5], cross_attention_dim=40, flip_sin_to_cos=False, freq_shift=1, norm_eps=1e-6,
                down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
                up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D")),
}
VAES = {
    "sd": dict(block_out_channels=(16, 32, 32, 32), layers_per_block=2, norm_num_groups=8),
    "odd": dict(block_out_channels=(12, 24, 20), layers_per_block=1, norm_num_groups=4),
}
TEXT_ENCODERS = {
    "sd1": dict(hidden_act="quick_gelu", hidden_size=48, num_attention_heads=6, intermediate_size=96, num_hidden_layers=3),
    "sd2": dict(hidden_act="gelu", hidden_size=64, num_attention_heads=4, intermediate_size=256, num_hidden_layers=4),
}
OLD_VAE_NAMES = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}

CAPTIONS = [
    "", " ", "\t\n", "a cat", "A CAT", "  leading and   inner spaces ", "it's the dogs' DON'T we'll I'M they'VE",
    "!", "!!!", "?!?!...", "a!b?c", "--__--", "x_y-z+w", "(a) [b] {c} <d>", "\\ / | ~ ^ `", "\"quoted\" ‘single’ “double”",
    "1", "12 345 6,789.01", "3rd 2nd 1080p 4k 16:9", "$5 €6 £7 ¥8", "50% & more &amp; &lt;b&gt;", "https://a.example/x?y=1&z=#q",
    "user@example.org #tag @name", "snake_case camelCase kebab-case", "naïve café São Tomé Øre Łódź", "e\u0301 a\u0308 n\u0303",
    "ß ẞ ﬁ ﬀ ŉ", "İzmir ISPARTA ığdır", "ΣΑΣ ΟΔΟΣ. ς", "Ёлка йод Київ", "猫と犬が走る", "北京 — 夜景，2020年", "ｆｕｌｌ ｗｉｄｔｈ １２",
    "서울 야경 한글", "שלום עוֹלָם", "مرحبًا بالعالم", "नमस्ते दुनिया", "ภาษาไทยง่าย", "தமிழ்", "😀", "a😀b😃 👩‍👩‍👧 🏳️‍🌈 👍🏽 🇩🇪",
    "① ⅷ Ⅷ ½ ² ٣ ४ 𝟙", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝒻𝓊𝓃", "a\u00a0b\u2003c\u3000d\u200be\u200df\ufeffg", "line\nbreak\r\nand\u2028more\u0085x", "nul\u0001\u001f\u007f\u0080",
    "soft\u00adhyphen \u202ertl\u202c", "<|startoftext|>", "a<|endoftext|>b", "<|endoftext|><|endoftext|> x", "<|EndOfText|>",
    "< |endoftext| >", "</w> a</w>b", "'", "''s 's'", "l'été d'Artagnan O'Neil y'all'd've", "cat " * 75, "cat " * 76,
    "antidisestablishmentarianism " * 12, "z" * 400, "猫" * 90, "😀" * 50, "!?" * 60, "a" + "\u0301" * 90,
    "IMG_2043.JPG (1) [final].v2", "ends with apostrophe s'", "\ufffd \ue000 \ufffe", "Ω K Å ſt", "Ǆ ǅ ǆ",
]


class Table:
    """Prints comparisons as they are made and remembers whether all held."""

    def __init__(self):
        self.rows = self.failures = 0
        print(f"{'part':11} {'case':34} {'compared':20} {'difference':>10} {'limit':>8}")

    def add(self, part, case, what, difference, limit):
        good = difference <= limit  # NaN is not
        self.rows += 1
        self.failures += not good
        print(f"{part:11} {case:34} {what:20} {difference:10.2e} {limit:8.0e}{'' if good else '  <- too far'}", flush=True)

    def error(self, part, case, text):
        self.rows += 1
        self.failures += 1
        print(f"{part:11} {case:34} {text}  <- failed", flush=True)


class Millrace:
    """Runs the program with tensors in and out."""

    def __init__(self, program, scratch):
        self.program, self.scratch = str(program), scratch

    def run(self, *arguments, stdin=None):
        done = subprocess.run([self.program, *map(str, arguments)], input=stdin, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"exit {done.returncode}: {(done.stderr or done.stdout).strip()}")
        return done.stdout

    def probe(self, component, pipeline, inputs):
        source, result = self.scratch / "in.safetensors", self.scratch / "out.safetensors"
        save_file({name: tensor.contiguous() for name, tensor in inputs.items()}, source)
        self.run("probe", "--component", component, "--pipeline", pipeline, "--input", source, "--output", result, "run.device=cpu")
        return load_file(result)

    def transform(self, image, *keys):
        result = self.scratch / "image.safetensors"
        self.run("probe", "--component", "transform", "--image", image, "--output", result, *keys)
        return load_file(result)["image"].numpy()


def difference(mine, reference):
    if mine.shape != reference.shape:
        return float("inf")
    return ((mine - reference).abs().max() / reference.abs().max()).item()


def gradient_difference(mine, references):
    """The worst parameter's; infinite when a name is missing or too many."""
    if mine.keys() != references.keys():
        return float("inf")
    floor = 1e-3 * max(g.abs().max() for g in references.values())
    return max(((mine[n] - g).abs().max() / torch.maximum(g.abs().max(), floor)).item() for n, g in references.items())


def shake(model, generator):
    """Moves biases and norms away from 0 and 1, so that one that is left out or swapped is seen."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def save_layout(model, folder, layout):
    """Writes the weights as `layout` says; the model keeps the values that the files hold."""
    shutil.rmtree(folder, ignore_errors=True)
    if layout == "fp16":
        model.half().save_pretrained(folder)
        model.float()
    elif layout == "sharded":
        model.save_pretrained(folder, max_shard_size="300KB")
        if len(list(folder.glob("*.safetensors"))) < 2:
            sys.exit(f"{folder} was not sharded: choose larger models")
    else:
        model.save_pretrained(folder)


def write_index(pipeline):
    entries = dict(unet="UNet2DConditionModel", vae="AutoencoderKL", text_encoder="CLIPTextModel")
    index = {name: ["transformers" if name == "text_encoder" else "diffusers", kind] for name, kind in entries.items()}
    pipeline.mkdir()
    (pipeline / "model_index.json").write_text(json.dumps({"_class_name": "StableDiffusionPipeline", **index}))


def rename_weights(file, rename, extra=None):
    tensors = {rename(name): tensor for name, tensor in load_file(file).items()}
    save_file({**tensors, **(extra or {})}, file, metadata={"format": "pt"})


def check_unets(millrace, table, scratch, generator):
    def normal(*shape):
        return torch.randn(shape, generator=generator)

    timesteps = {"per sample": torch.tensor([3, 977]), "one": torch.tensor([421]), "scalar": torch.tensor(999),
                 "fractional": torch.tensor([0.25, 713.625]), "fractional scalar": torch.tensor(55.5)}
    layouts = {"sd1": ["plain", "fp16"], "sd2": ["plain", "sharded"], "odd": ["plain", "fp16"]}
    sizes = {"sd1": (16, 24), "sd2": (13, 18), "odd": (11, 7)}
    for name, config in UNETS.items():
        model = shake(diffusers.UNet2DConditionModel(**config), generator)
        for layout in layouts[name]:
            save_layout(model, scratch / "pipeline/unet", layout)
            shapes = [sizes[name], (16, 16)] if layout == "plain" else [(12, 20)]
            for height, width in shapes:
                for kind, timestep in timesteps.items() if layout == "plain" else [("per sample", timesteps["per sample"])]:
                    inputs = dict(sample=normal(2, 4, height, width), timestep=timestep,
                                  encoder_hidden_states=normal(2, 77, config["cross_attention_dim"]))
                    if kind in ("per sample", "fractional"):
                        inputs["target"] = normal(2, 4, height, width)
                    check_unet(millrace, table, scratch / "pipeline", model, f"{name} {layout} {height}x{width} {kind}", inputs)
    alone = scratch / "alone"  # nothing but the component, with and without the pipeline's folder around it
    model.save_pretrained(alone / "unet")
    for case, folder in [("only DIR/unet", alone), ("DIR = unet", alone / "unet")]:
        check_unet(millrace, table, folder, model, case, {name: value for name, value in inputs.items() if name != "target"})


def check_unet(millrace, table, pipeline, model, case, inputs):
    try:
        mine = millrace.probe("unet", pipeline, inputs)
    except RuntimeError as error:
        return table.error("unet", case, str(error))
    model.zero_grad()
    output = model(inputs["sample"], inputs["timestep"], inputs["encoder_hidden_states"]).sample
    table.add("unet", case, "output", difference(mine["output"], output.detach()), OUTPUT_LIMIT)
    if "target" in inputs:
        loss = torch.nn.functional.mse_loss(output, inputs["target"])
        loss.backward()
        gradients = {name: p.grad for name, p in model.named_parameters()}
        found = {name.removeprefix("grad."): tensor for name, tensor in mine.items() if name.startswith("grad.")}
        table.add("unet", case, "loss", abs(mine["loss"].item() / loss.item() - 1), OUTPUT_LIMIT)
        table.add("unet", case, f"{len(gradients)} gradients", gradient_difference(found, gradients), GRADIENT_LIMIT)


@torch.no_grad()
def check_vaes(millrace, table, scratch, generator):
    for name, config in VAES.items():
        levels = len(config["block_out_channels"])
        model = shake(diffusers.AutoencoderKL(**config, down_block_types=["DownEncoderBlock2D"] * levels,
                                              up_block_types=["UpDecoderBlock2D"] * levels), generator)
        for layout in ("plain", "old names", "sharded", "fp16"):
            folder = scratch / "pipeline/vae"
            save_layout(model, folder, layout)
            if layout == "old names":
                def old(key):
                    for new_part, old_part in OLD_VAE_NAMES.items():
                        key = key.replace(f"attentions.0.{new_part}.", f"attentions.0.{old_part}.")
                    return key
                rename_weights(folder / "diffusion_pytorch_model.safetensors", old)
            for height, width in [(48, 72), (45, 61)] if layout == "plain" else [(64, 40)]:
                case = f"{name} {layout} {height}x{width}"
                image = torch.rand((2, 3, height, width), generator=generator) * 2 - 1
                latent = torch.randn((2, 4, height // 8 + 1, width // 8 + 2), generator=generator)
                try:
                    moments = millrace.probe("vae-encode", scratch / "pipeline", {"image": image})["moments"]
                    decoded = millrace.probe("vae-decode", scratch / "pipeline", {"latent": latent})["image"]
                except RuntimeError as error:
                    table.error("vae", case, str(error))
                    continue
                reference = model.quant_conv(model.encoder(image))  # raw: without diffusers' clamp of the variance
                table.add("vae-encode", case, "moments", difference(moments, reference), OUTPUT_LIMIT)
                table.add("vae-decode", case, "image", difference(decoded, model.decode(latent).sample), OUTPUT_LIMIT)


@torch.no_grad()
def check_text_encoders(millrace, table, scratch, generator):
    for name, config in TEXT_ENCODERS.items():
        config = transformers.CLIPTextConfig(**config, vocab_size=700, bos_token_id=0, eos_token_id=2, pad_token_id=1)
        model = shake(transformers.CLIPTextModel(config), generator)
        for layout in ("plain", "with prefix", "without prefix", "sharded", "fp16"):
            folder = scratch / "pipeline/text_encoder"
            save_layout(model, folder, layout)
            file = folder / "model.safetensors"
            if layout == "with prefix":  # as the hub's SD folders have it, position_ids included
                rename_weights(file, lambda key: "text_model." + key.removeprefix("text_model."),
                               {"text_model.embeddings.position_ids": torch.arange(77)[None]})
            elif layout == "without prefix":
                rename_weights(file, lambda key: key.removeprefix("text_model."))
            ids = torch.randint(3, 700, (3, 77), generator=generator)
            ids[:, 0], ids[1, 9:] = 698, 699
            try:
                hidden = millrace.probe("text", scratch / "pipeline", {"ids": ids})["hidden"]
            except RuntimeError as error:
                table.error("text", f"{name} {layout}", str(error))
                continue
            table.add("text", f"{name} {layout}", "hidden", difference(hidden, model(ids).last_hidden_state), OUTPUT_LIMIT)


def reference_transform(image, policy, interpolation, size):
    """The two transforms written with Pillow alone."""
    width, height = image.size
    short = min(width, height)
    if policy == "resize_then_crop":
        width, height = [size if side == short else int(size * side / short) for side in (width, height)]
        image, short = image.resize((width, height), interpolation), size
    left, top = (width - short) // 2, (height - short) // 2
    image = image.crop((left, top, left + short, top + short))
    return image if image.size == (size, size) else image.resize((size, size), interpolation)


def check_transforms(millrace, table, scratch):
    filters = dict(bilinear=Image.BILINEAR, bicubic=Image.BICUBIC, lanczos=Image.LANCZOS)
    sources = dict(astronaut=("png", {}), coffee=("jpg", dict(quality=91)), chelsea=("jpg", dict(quality=75, progressive=True)),
                   rocket=("jpg", dict(quality=85, subsampling="4:4:4")), hubble_deep_field=("webp", dict(quality=80)),
                   camera=("png", {}), coins=("jpg", dict(quality=88)), logo=("webp", dict(lossless=True)))
    for name, (suffix, options) in sources.items():
        file = scratch / f"{name}.{suffix}"
        image = Image.fromarray(getattr(photos, name)())
        (image if suffix == "png" else image.convert("L" if image.mode == "L" else "RGB")).save(file, **options)
        decoded = Image.open(file).convert("RGB")
        for policy, word, size in [("resize_then_crop", "bilinear", 256), ("crop_then_resize", "bicubic", 256),
                                   ("resize_then_crop", "lanczos", 72), ("crop_then_resize", "bilinear", 600)]:
            keys = [f"transform.resolution={size}", f"transform.policy={policy}", f"transform.interpolation={word}"]
            case = f"{file.name} {policy} {size}"
            try:
                mine = millrace.transform(file, *keys).astype(int)
            except RuntimeError as error:
                table.error("transform", case, str(error))
                continue
            reference = numpy.asarray(reference_transform(decoded, policy, filters[word], size)).astype(int)
            levels = abs(mine - reference).max() if mine.shape == reference.shape else numpy.inf
            table.add("transform", case, f"levels, {word}", float(levels), 0)


def check_tokenizer(millrace, table, scratch):
    made = scratch / "made"
    millrace.run("init", "--preset", "tiny", "--out", made)
    stdin = "".join(json.dumps(caption) + "\n" for caption in CAPTIONS)
    for case in ("as made", "pad !", "saved by transformers"):
        folder = scratch / "tokenizer"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(made / "tokenizer", folder)
        if case == "pad !":
            file = folder / "special_tokens_map.json"
            file.write_text(json.dumps(dict(json.loads(file.read_text()), pad_token="!")))
        tokenizer = transformers.CLIPTokenizer.from_pretrained(folder)
        if case == "saved by transformers":
            shutil.rmtree(folder)
            tokenizer.save_pretrained(folder)
        expected = tokenizer(CAPTIONS, padding="max_length", max_length=77, truncation=True)["input_ids"]
        try:
            lines = millrace.run("tokenize", "--pipeline", folder, stdin=stdin).splitlines()
        except RuntimeError as error:
            table.error("tokenize", case, str(error))
            continue
        wrong = [caption for caption, line, ids in zip(CAPTIONS, lines, expected) if json.loads(line) != ids]
        table.add("tokenize", case, f"{len(CAPTIONS)} captions", len(wrong) + abs(len(lines) - len(expected)), 0)
        for caption in wrong:
            print(f"  {caption!r}")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millrace", required=True, type=Path, help="the program")
    parser.add_argument("--parts", default="unet,vae,text,transform,tokenize")
    parser.add_argument("--seed", type=int, default=7, help="of weights and inputs")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    check_replay.silence()
    torch.manual_seed(arguments.seed)
    generator = torch.Generator().manual_seed(arguments.seed)
    parts = arguments.parts.split(",")
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        millrace, table = Millrace(arguments.millrace.resolve(), scratch), Table()
        write_index(scratch / "pipeline")
        if "unet" in parts:
            check_unets(millrace, table, scratch, generator)
        if "vae" in parts:
            check_vaes(millrace, table, scratch, generator)
        if "text" in parts:
            check_text_encoders(millrace, table, scratch, generator)
        if "transform" in parts:
            check_transforms(millrace, table, scratch)
        if "tokenize" in parts:
            check_tokenizer(millrace, table, scratch)
    print(f"{table.rows} comparisons, {table.failures} beyond their limits: {'ok' if table.failures == 0 else 'FAILED'}")
    return 0 if table.failures == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
