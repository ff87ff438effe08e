#pragma once
#include "millrace/comm/group.h"
#include "millrace/models/pipeline_folder.h"

namespace millrace {

// The frozen networks, loaded once in a process: copies share the weights.
struct EncoderNetworks {
  AutoencoderKL vae{nullptr};
  CLIPTextModel text{nullptr};  // null if trainers make the text embeddings
};

// The first of `ranks` reads the weights, and the others get them from it: a thousand ranks that begin together must
// not read one file. Collective over `ranks`; an error on one is thrown on all.
EncoderNetworks load_encoders(const Group& ranks, const PipelineFolder& pipeline, bool with_text, torch::Device device,
                              torch::Dtype dtype);
CLIPTextModel load_text_encoder(const Group& ranks, const PipelineFolder& pipeline, torch::Device device,
                                torch::Dtype dtype);

}  // namespace millrace
