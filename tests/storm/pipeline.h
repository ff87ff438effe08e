#pragma once
#include <filesystem>

namespace millrace::storm {

// Makes of the folder `tiny`, which `init --preset tiny` wrote, one that costs next to nothing: what a storm is about
// is who computes what when. Images of 8 pixels become latents of 4.
void shrink_pipeline(const std::filesystem::path& tiny);
constexpr int pipeline_resolution = 8;

}  // namespace millrace::storm
