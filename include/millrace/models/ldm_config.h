#pragma once
#include <optional>
#include <string>
#include <vector>

#include "millrace/diffusion/scheduler_config.h"
#include "millrace/models/autoencoder_kl.h"
#include "millrace/models/clip_text.h"
#include "millrace/models/unet_config.h"

// What stands beside a single-file checkpoint (ldm_export.h): the configuration of latent-diffusion, which web UIs read
// from a .yaml of the same name.
namespace millrace {

struct LdmModel {
  UNet2DConditionConfig unet;
  AutoencoderKLConfig vae;  // with the scaling factor that the latents were trained with
  CLIPTextConfig text_encoder;
  SchedulerConfig scheduler;
};

// What readers of the file alone do not know, or guess: "prediction_type v_prediction", "scaling_factor 0.5". Without a
// word they take epsilon and the numbers of Stable Diffusion; of Stable Diffusion 2's width some take v, others guess
// by the weights.
std::vector<std::string> list_settings_readers_guess(const LdmModel& model);

// What the YAML has no words for either: "norm_num_groups 8 of the U-Net". Readers take Stable Diffusion's.
std::vector<std::string> list_settings_without_yaml_key(const LdmModel& model);

// The YAML; nothing for a U-Net that latent-diffusion has no words for.
std::optional<std::string> find_ldm_config(const LdmModel& model);

}  // namespace millrace
