// Ranks that load the encoders together: the first one alone has their files.
#include "millrace/produce/encoder_networks.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "dataset/temp_archives.h"
#include "error_of.h"
#include "millrace/comm/agree.h"
#include "millrace/core/hash.h"
#include "millrace/nn/weights.h"
#include "mpi_world.h"
#include "test_data.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

// A copy of a pipeline for this rank, with its weights or without.
PipelineFolder own_pipeline(const test::TempFolder& folder, bool with_weights) {
  const auto path = fs::path(folder.path("pipeline"));
  fs::copy(test::data_dir() / "folder/pipeline", path, fs::copy_options::recursive);
  if (!with_weights)
    for (const char* component : {"vae", "text_encoder"})
      for (const auto& file : fs::directory_iterator(path / component))
        if (file.path().extension() == ".safetensors") fs::remove(file.path());
  return PipelineFolder::open(path);
}

std::string digest_of(const torch::nn::Module& network) {
  std::string digests;
  for (const auto& [name, weight] : weights_of(network)) {
    const auto values = weight.contiguous();
    digests += name + " " + hash128({static_cast<const char*>(values.data_ptr()), values.nbytes()}).hex() + "\n";
  }
  return digests;
}

TEST(EncoderNetworks, AreThoseOfTheFirstRank) {
  const auto& group = test_world().group();
  const test::TempFolder folder;
  const auto pipeline = own_pipeline(folder, group.rank() == 0);
  const auto whole = PipelineFolder::open(test::data_dir() / "folder/pipeline");
  for (const auto dtype : {torch::kFloat32, torch::kBFloat16}) {
    const auto networks = load_encoders(group, pipeline, /*with_text=*/true, torch::kCPU, dtype);
    EXPECT_EQ(digest_of(*networks.vae), digest_of(*whole.load_vae(torch::kCPU, dtype)));
    EXPECT_EQ(digest_of(*networks.text), digest_of(*whole.load_text_encoder(torch::kCPU, dtype)));
    EXPECT_FALSE(networks.vae->is_training());
  }
}

TEST(EncoderNetworks, WhatTheFirstRankCannotReadIsAnErrorOfAll) {
  const auto& group = test_world().group();
  const test::TempFolder folder;
  const auto pipeline = own_pipeline(folder, group.rank() != 0);
  const auto error = test::error_of([&] { load_text_encoder(group, pipeline, torch::kCPU, torch::kFloat32); });
  EXPECT_EQ(error.exit(), Exit::io) << error.what();
}

TEST(EncoderNetworks, OfOtherKindsAreRefusedByAll) {
  const auto& group = test_world().group();
  if (group.size() == 1) GTEST_SKIP() << "needs another rank";
  const test::TempFolder folder;
  const auto pipeline = own_pipeline(folder, true);
  const auto dtype = group.rank() == 0 ? torch::kHalf : torch::kBFloat16;  // of as many bytes
  const auto error = test::error_of([&] { load_text_encoder(group, pipeline, torch::kCPU, dtype); });
  EXPECT_EQ(error.exit(), Exit::usage) << error.what();
}

}  // namespace
}  // namespace millrace
