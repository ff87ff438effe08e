#include <gtest/gtest.h>
#include <torch/script.h>
#include <torch/utils.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "core/temp_dir.h"
#include "devices.h"
#include "error_of.h"
#include "millrace/core/files.h"
#include "millrace/evaluate/clip_score.h"
#include "millrace/evaluate/feature_network.h"
#include "millrace/evaluate/reference.h"
#include "millrace/evaluate/statistics.h"
#include "millrace/image/decode.h"
#include "millrace/image/pillow_resize.h"
#include "millrace/models/tensors.h"
#include "test_data.h"

// Against tests/golden/evaluate, written by scripts/goldens/evaluate.py with numpy, scipy, Pillow and transformers.
namespace millrace {
namespace {

using Json = nlohmann::json;

fs::path golden(const std::string& name) {
  return test::data_dir() / "evaluate" / name;
}

const Json& expected() {
  static const Json json = Json::parse(std::ifstream(golden("expected.json")));
  return json;
}

std::vector<Image> pictures() {
  std::vector<Image> images;
  for (int n = 0; n < 6; ++n)
    images.push_back(std::get<Image>(decode_image(read_file(golden(fmt::format("images/{}.png", n))))));
  return images;
}

torch::Tensor table(const Json& rows) {
  std::vector<torch::Tensor> tensors;
  for (const auto& row : rows)
    tensors.push_back(torch::tensor(at::ArrayRef<double>(row.get<std::vector<double>>()), torch::kFloat64));
  return torch::stack(tensors);
}

double largest_difference(const torch::Tensor& a, const torch::Tensor& b) {
  return (a.to(torch::kFloat64) - b).abs().max().item<double>();
}

TEST(Resize, FloatBicubicIsPillows) {
  const auto images = pictures();
  for (const auto& [n, values] : expected()["resized"].items()) {
    const auto planes = resize_bicubic_float(images.at(std::stoul(n)), 299, 299);
    std::size_t i = 0;
    for (std::size_t c = 0; c < 3; ++c)
      for (std::size_t y = 0; y < 299; y += 37)
        for (std::size_t x = 0; x < 299; x += 23)
          EXPECT_EQ(std::clamp(planes[(c * 299 + y) * 299 + x], 0.0F, 255.0F), values.at(i++).get<float>()) << n;
    EXPECT_EQ(i, values.size());
  }
}

using EvaluateOnDevice = test::OnDevice;
MILLRACE_ON_DEVICES(EvaluateOnDevice);

TEST_P(EvaluateOnDevice, FeaturesAreThePythonStacks) {
  const auto images = pictures();
  for (const auto& [file, resize, key] : {std::tuple{"inception.pt", FeatureResize::clean, "clean"},
                                          {"inception.pt", FeatureResize::legacy, "legacy"},
                                          {"plain.pt", FeatureResize::clean, "plain"}}) {
    auto network = FeatureNetwork::load(golden(file), resize, device());
    const auto features = network.features(images).cpu();
    EXPECT_EQ(features.scalar_type(), torch::kFloat32);
    EXPECT_LT(largest_difference(features, table(expected()[key])), is_cuda() ? 2e-4 : 2e-5) << key;
    EXPECT_EQ(network.width(), features.size(1)) << key;
  }
}

TEST(FeatureNetwork, RefusesWhatItCannotUse) {
  EXPECT_EQ(test::error_of([] { FeatureNetwork::load(golden("plain.pt"), FeatureResize::legacy, torch::kCPU); }).exit(),
            Exit::usage);
  const auto wrong =
      test::error_of([] { FeatureNetwork::load(golden("statistics.npz"), FeatureResize::clean, torch::kCPU); });
  EXPECT_EQ(wrong.exit(), Exit::io);
  EXPECT_NE(std::string(wrong.what()).find("statistics.npz"), std::string::npos) << wrong.what();
}

// TorchScript is a program.
TEST(FeatureNetwork, CodeForFilesIsRefusedBeforeItRuns) {
  const test::TempDir here;
  const auto before = fs::current_path();
  fs::current_path(here.path());
  for (const auto& [file, name] :
       {std::pair{"saves.pt", "aten::save"}, {"saves_when_loaded.pt", "aten::save"}, {"reads.pt", "aten::from_file"}}) {
    const auto error = test::error_of([&] { FeatureNetwork::load(golden(file), FeatureResize::clean, torch::kCPU); });
    EXPECT_EQ(error.exit(), Exit::io) << file;
    EXPECT_NE(std::string(error.what()).find(std::string(file) + " writes or reads files, by " + name),
              std::string::npos)
        << error.what();
  }
  fs::current_path(before);
  EXPECT_TRUE(fs::is_empty(here.path()));
}

// The interpreter tells as a text what its operators throw.
TEST(FeatureNetwork, WordsTellWhoseMatterAFailureIs) {
  const test::TempDir dir;
  const auto exit_of = [&](const std::string& words) {
    torch::jit::Module module("network");
    module.define(fmt::format("def forward(self, x):\n  assert False, '{}'\n  return x\n", words));
    module.save((dir.path() / "network.pt").string());
    auto network = FeatureNetwork::load(dir.path() / "network.pt", FeatureResize::clean, torch::kCPU);
    return test::error_of([&] { network.width(); }).exit();
  };
  EXPECT_EQ(exit_of("CUDA out of memory. Tried to allocate 2 GiB"), Exit::usage);
  EXPECT_EQ(exit_of("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), Exit::usage);
  EXPECT_EQ(exit_of("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"), Exit::usage);
  EXPECT_EQ(exit_of("CUDA error: unspecified launch failure"), Exit::suspect_node);
  EXPECT_EQ(exit_of("The size of tensor a must match the size of tensor b"), Exit::io);
}

TEST(Distances, AreScipysAndNumpys) {
  for (const auto& [name, set] : expected()["distances"].items()) {
    const auto a = table(set["a"]), b = table(set["b"]);
    const double fid = set["fid"];
    EXPECT_NEAR(frechet_distance(statistics_of(a), statistics_of(b)), fid, 2e-6 * fid) << name;
    const auto kid = kernel_distance(a, b, 1);
    EXPECT_NEAR(kid.mean, set["kid"].get<double>(), 1e-9 * std::abs(set["kid"].get<double>())) << name;
    EXPECT_EQ(kid.std, 0) << name;  // every subset is the whole
    EXPECT_NEAR(frechet_distance(statistics_of(a), statistics_of(a)), 0, 1e-6) << name;
  }
}

// Subsets of 120 rows: near the whole's, by the seed, never without spread.
TEST(Distances, KernelDistanceDrawsSubsets) {
  const auto generator = at::detail::createCPUGenerator(11);
  const auto a = torch::randn({200, 6}, generator), b = torch::randn({120, 6}, generator) + 0.4;
  const auto first = kernel_distance(a, b, 1), again = kernel_distance(a, b, 1), other = kernel_distance(a, b, 2);
  EXPECT_EQ(first.mean, again.mean);
  EXPECT_NE(first.mean, other.mean);
  EXPECT_GT(first.std, 0);
  EXPECT_NEAR(first.mean, other.mean, 5 * first.std / 10);  // two means of 100
  const auto whole = kernel_distance(a.slice(0, 0, 120), b, 1);
  EXPECT_NEAR(first.mean, whole.mean, 5 * first.std);
}

TEST(Distances, AThousandRowsAreOneSubset) {
  const auto generator = at::detail::createCPUGenerator(12);
  const auto a = torch::randn({1000, 2}, generator), b = torch::randn({1000, 2}, generator);
  EXPECT_EQ(kernel_distance(a, b, 1).std, 0);
}

// Of the three pairs of rows {0, 0, 1} one is 124 away from {2, 2}, the others 98: the mean says in how many subsets of
// a hundred it was drawn.
TEST(Distances, KernelDistanceIsTheMeanOfAHundredSubsets) {
  const auto a = table({{0}, {0}, {1}}), b = table({{2}, {2}});
  long long common = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const auto found = kernel_distance(a, b, seed);
    const double share = (found.mean - 98) / 26;
    EXPECT_NEAR(100 * share, std::round(100 * share), 1e-9) << seed;
    EXPECT_NEAR(found.std, 26 * std::sqrt(share * (1 - share)), 1e-9) << seed;
    common = std::gcd(common, std::llround(100 * share));
  }
  EXPECT_EQ(common, 1) << "of fewer subsets the numbers would have a common factor";
}

TEST(Reference, NpzAndSafetensorsAreRead) {
  const auto features = table(expected()["clean"]).to(torch::kFloat32);
  const auto of_npz = read_reference_file(golden("statistics.npz"));  // sigma in Fortran's order, deflated
  EXPECT_FALSE(of_npz.features);
  EXPECT_LT(largest_difference(of_npz.statistics.mean, statistics_of(features).mean), 1e-12);
  EXPECT_LT(largest_difference(of_npz.statistics.covariance, statistics_of(features).covariance), 1e-12);
  const test::TempDir dir;
  write_tensors(dir.path() / "a.safetensors", {{"features", features}});
  const auto of_features = read_reference_file(dir.path() / "a.safetensors");
  EXPECT_TRUE(of_features.features->equal(features));
  write_tensors(dir.path() / "b.safetensors", {{"other", features}});
  EXPECT_EQ(test::error_of([&] { read_reference_file(dir.path() / "b.safetensors"); }).exit(), Exit::io);
}

// As clean-fid keeps the features that KID needs.
TEST(Reference, NpzMayHoldFeatures) {
  const auto features = table(expected()["clean"]).to(torch::kFloat32);
  const auto reference = read_reference_file(golden("kid.npz"));
  ASSERT_TRUE(reference.features);
  EXPECT_TRUE(reference.features->equal(features));
  EXPECT_LT(largest_difference(reference.statistics.covariance, statistics_of(features).covariance), 1e-12);
}

void expect_scores(ClipScorer scorer, const std::string& name, double tolerance) {
  const auto scores = scorer.scores(pictures(), expected()["captions"].get<std::vector<std::string>>());
  const auto wanted = expected()[name].get<std::vector<double>>();
  for (std::size_t i = 0; i < wanted.size(); ++i)
    EXPECT_NEAR(scores[static_cast<std::int64_t>(i)].item<double>(), wanted[i], tolerance) << name << " " << i;
}

TEST_P(EvaluateOnDevice, ClipScoresAreTransformers) {
  for (const std::string folder : {"clip", "clip_old"})
    expect_scores(ClipScorer::load(golden(folder), device()), folder, is_cuda() ? 1e-3 : 1e-4);
}

// None of its numbers is CLIP's own, and pictures are smaller than the crop, by an odd number of pixels.
TEST(ClipScore, PreprocessingIsThatOfTheFile) {
  const test::TempDir dir;
  fs::copy(golden("clip"), dir.path(), fs::copy_options::recursive);
  const std::string name = "preprocessor_config.json";
  fs::copy_file(golden("clip_padded") / name, dir / name, fs::copy_options::overwrite_existing);
  expect_scores(ClipScorer::load(dir.path(), torch::kCPU), "clip_padded", 1e-4);
}

// As CLIPProcessor of transformers 5 saves it: no preprocessor_config.json, the same as a part of another file.
TEST(ClipScore, TheProcessorsFileIsReadWhereTheImageProcessorsIsMissing) {
  const test::TempDir dir;
  fs::copy(golden("clip"), dir.path(), fs::copy_options::recursive);
  const auto file = dir.path() / "preprocessor_config.json", whole = dir.path() / "processor_config.json";
  const auto part = Json::parse(std::ifstream(file));
  fs::remove(file);
  const auto error = test::error_of([&] { ClipScorer::load(dir.path(), torch::kCPU); });
  EXPECT_EQ(error.exit(), Exit::io);
  EXPECT_NE(std::string(error.what()).find("no preprocessor_config.json"), std::string::npos) << error.what();
  EXPECT_NE(error.hint().find("docs/evaluation.md"), std::string::npos) << error.hint();
  std::ofstream(whole) << Json{{"image_processor", part}, {"processor_class", "CLIPProcessor"}};
  const auto images = pictures();
  const auto captions = expected()["captions"].get<std::vector<std::string>>();
  const auto scores = ClipScorer::load(dir.path(), torch::kCPU).scores(images, captions);
  EXPECT_TRUE(scores.equal(ClipScorer::load(golden("clip"), torch::kCPU).scores(images, captions)));
  std::ofstream(file) << part;  // where both are there, this one counts
  std::ofstream(whole) << "{}";
  EXPECT_TRUE(ClipScorer::load(dir.path(), torch::kCPU).scores(images, captions).equal(scores));
}

TEST(ClipScore, NamesTheFileThatIsWrong) {
  const test::TempDir dir;
  fs::copy(golden("clip"), dir.path(), fs::copy_options::recursive);
  auto json = Json::parse(std::ifstream(dir.path() / "preprocessor_config.json"));
  json["resample"] = 2;
  std::ofstream(dir.path() / "preprocessor_config.json") << json;
  const auto error = test::error_of([&] { ClipScorer::load(dir.path(), torch::kCPU); });
  EXPECT_NE(std::string(error.what()).find("preprocessor_config.json: resample"), std::string::npos) << error.what();
  fs::remove(dir.path() / "config.json");
  EXPECT_EQ(test::error_of([&] { ClipScorer::load(dir.path(), torch::kCPU); }).exit(), Exit::io);
}

}  // namespace
}  // namespace millrace
