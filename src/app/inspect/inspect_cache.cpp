// Latent caches: what the cache says of itself, its captions, and with a VAE its images.
#include <algorithm>

#include "inspect/inspect.h"
#include "inspect/sample_survey.h"
#include "millrace/core/error.h"
#include "millrace/generate/sampling.h"
#include "millrace/latents/inspect_latent_cache.h"
#include "millrace/latents/latent_cache.h"
#include "millrace/latents/latent_file.h"
#include "millrace/models/pipeline_folder.h"

namespace millrace {
namespace {

using nlohmann::json;
namespace stdfs = std::filesystem;

// The files of a cache in the order of archives and rows.
std::vector<LatentFileInfo> list_files(const stdfs::path& cache) {
  std::vector<stdfs::path> paths;
  std::error_code none_there;
  for (const auto& entry : stdfs::recursive_directory_iterator(cache / "rows", none_there))
    if (entry.path().extension() == ".json") paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<LatentFileInfo> files;
  for (const auto& path : paths) files.push_back(read_latent_file_info(path));
  return files;
}

json describe_captions(const std::vector<LatentFileInfo>& files, const InspectOptions& options) {
  CaptionSurvey captions(options.pipeline);
  for (const auto& file : files)
    for (const auto& caption : Hdf5Reader(file.path).read_text("captions", 0, file.rows.size())) captions.add(caption);
  return captions.report();
}

// Means of the first encodings: f32 (N, channels, h, w).
torch::Tensor first_means(const std::vector<LatentFileInfo>& files, const EncodingShape& shape) {
  std::vector<torch::Tensor> means;
  for (const auto& info : files) {
    const LatentFile file(info, shape);
    for (std::size_t i = 0; i < info.rows.size() && means.size() < grid_images; ++i) {
      auto moments = file.read(i).encoding.moments;
      const auto values = torch::from_blob(moments.data(), shape.moments, torch::kHalf).to(torch::kFloat32);
      means.push_back(values.chunk(2)[0]);
    }
  }
  return means.empty() ? torch::Tensor() : torch::stack(means);
}

// As many as there are first means.
std::vector<std::string> first_captions(const std::vector<LatentFileInfo>& files) {
  std::vector<std::string> captions;
  for (const auto& info : files) {
    const auto count = std::min(info.rows.size(), grid_images - captions.size());
    for (auto& caption : Hdf5Reader(info.path).read_text("captions", 0, count)) captions.push_back(std::move(caption));
  }
  return captions;
}

void write_cache_grid(const stdfs::path& cache, const std::vector<LatentFileInfo>& files,
                      const InspectOptions& options) {
  if (!options.pipeline)
    throw Error(Exit::usage, fmt::format("--grid: {} holds latents, which a VAE turns into images", cache.string()),
                "add --pipeline DIR, the folder that they were made with");
  const auto means = first_means(files, read_cache_description(cache).shape);
  if (!means.defined()) fail(Exit::usage, "--grid: {} is empty", cache.string());
  auto vae = PipelineFolder::open(*options.pipeline).load_vae(torch::kCPU, torch::kFloat32);
  write_grid(*options.grid, decode_unscaled_latents(vae, means), cache, first_captions(files));
}

}  // namespace

json inspect_cache(const stdfs::path& path, const InspectOptions& options) {
  json report = inspect_latent_cache(path);
  if (!report.at("problems").empty()) return report;  // HDF5 reads only files whose digests are right
  const auto files = list_files(path);
  report["captions"] = describe_captions(files, options);
  if (options.grid) write_cache_grid(path, files, options);
  return report;
}

}  // namespace millrace
