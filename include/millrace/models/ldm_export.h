#pragma once
#include <filesystem>

#include "millrace/models/autoencoder_kl.h"
#include "millrace/models/clip_text.h"
#include "millrace/models/tensors.h"
#include "millrace/models/unet_config.h"

// Stable Diffusion as one file, under the names of its first publication (latent-diffusion's "LDM" checkpoints): what
// ComfyUI, AUTOMATIC1111's web UI, stable-diffusion.cpp and diffusers' from_single_file read.
namespace millrace {

// A network under diffusers' names -> the same under those of a checkpoint, prefix included. Error(usage) for a U-Net
// that such checkpoints have no names for.
Tensors ldm_unet(const UNet2DConditionConfig& config, const Tensors& tensors);
Tensors ldm_vae(const AutoencoderKLConfig& config, const Tensors& tensors);
// Stable Diffusion 1's CLIP keeps transformers' names; an encoder with the exact GELU, as that of Stable Diffusion 2,
// gets OpenCLIP's.
Tensors ldm_text_encoder(const CLIPTextConfig& config, const Tensors& tensors);

// One file of all three, in float32; it appears only when it is complete.
void write_ldm_checkpoint(const std::filesystem::path& file, const Tensors& unet, const Tensors& vae,
                          const Tensors& text_encoder);

}  // namespace millrace
