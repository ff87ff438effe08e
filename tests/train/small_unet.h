#pragma once
#include "millrace/models/initialize.h"
#include "millrace/models/presets.h"
#include "millrace/models/unet_2d_condition.h"
#include "parcels/encodings.h"

namespace millrace::test {

// A U-Net of two small levels, for the samples of parcels/encodings.h.
inline UNet2DConditionModel make_small_unet(double dropout = 0) {
  auto config = preset_configs(Preset::tiny).unet;
  config.update({{"attention_head_dim", {2, 2}},
                 {"block_out_channels", {8, 16}},
                 {"cross_attention_dim", text_width},
                 {"down_block_types", {"CrossAttnDownBlock2D", "DownBlock2D"}},
                 {"dropout", dropout},
                 {"norm_num_groups", 4},
                 {"sample_size", latent_side},
                 {"up_block_types", {"UpBlock2D", "CrossAttnUpBlock2D"}}});
  return make_unet(config, /*seed=*/3);
}

}  // namespace millrace::test
