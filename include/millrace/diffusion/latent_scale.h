#pragma once

namespace millrace {

// Latents for the U-Net are (z - shift) x factor of the VAE's z.
struct LatentScale {
  double factor = 1, shift = 0;
};

}  // namespace millrace
