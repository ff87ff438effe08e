#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <torch/utils.h>

#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "devices.h"
#include "millrace/core/error.h"
#include "millrace/encode/encoder.h"
#include "millrace/models/initialize.h"
#include "millrace/models/presets.h"
#include "samples.h"

namespace millrace {
namespace {

// To the bit on the CPU. On a GPU libraries choose kernels by trying them, and may split sums by the place in a batch.
bool is_same(const torch::Tensor& a, const torch::Tensor& b, torch::Device device) {
  if (device.is_cpu()) return torch::equal(a, b);
  return torch::allclose(a.to(torch::kFloat32), b.to(torch::kFloat32), 1e-2, 1e-2);
}

using test::noise_sample;
using testing::Each;
using testing::ElementsAre;

constexpr int batch_size = 7;

// `channels`: of the VAE's last level, where the images are a quarter of their size.
Encoder make_encoder(torch::Device device = torch::kCPU, torch::Dtype dtype = torch::kFloat32, int rows = batch_size,
                     int channels = 64) {
  auto configs = preset_configs(Preset::tiny);
  configs.vae["block_out_channels"].back() = channels;
  auto vae = make_vae(configs.vae, 1);
  nn::place(*vae, device, dtype);  // in the layout that it is loaded in
  return {vae, make_text_encoder(configs.text_encoder, 1, configs.token_embedding_std), device, dtype, rows};
}

std::vector<TransformedSample> noise_samples(const std::vector<int>& numbers, int resolution) {
  std::vector<TransformedSample> samples;
  for (int number : numbers) samples.push_back(noise_sample(number, resolution));
  return samples;
}

TEST(ImagesToTensor, BytesBecomeMinusOneToOnePlaneByPlane) {
  TransformedSample sample;
  sample.image = {2, 1, {0, 51, 255, 102, 204, 255}};
  const auto tensor = normalize_images(stack_images({&sample, 1}));
  const auto expected = torch::tensor({-1.0f, -0.2f, -0.6f, 0.6f, 1.0f, 1.0f}).view({1, 3, 1, 2});
  EXPECT_TRUE(torch::allclose(tensor, expected, 0, 1e-6)) << tensor;
}

class EncoderOnDevice : public test::OnDevice {};
MILLRACE_ON_DEVICES(EncoderOnDevice);

// On the CPU.
TEST_P(EncoderOnDevice, IsTheTwoNetworks) {
  const auto configs = preset_configs(Preset::tiny);
  auto vae = make_vae(configs.vae, 1);
  auto text = make_text_encoder(configs.text_encoder, 1, configs.token_embedding_std);
  auto encoder = make_encoder(device());
  const auto samples = noise_samples({4, 5, 6}, 64);
  const auto batch = encoder.encode(samples);

  torch::InferenceMode guard;
  auto ids = torch::empty({3, token_count}, torch::kInt64);
  for (int i = 0; i < 3; ++i)
    for (int j = 0; j < token_count; ++j) ids[i][j] = samples[i].tokens[j];
  EXPECT_TRUE(batch.moments.is_cpu() && batch.moments.is_contiguous() && batch.text.is_cpu());
  EXPECT_EQ(batch.moments.scalar_type(), torch::kHalf);
  EXPECT_EQ(batch.text.scalar_type(), torch::kHalf);
  EXPECT_EQ(batch.moments.sizes().slice(0, 2), at::IntArrayRef({3, 8}));
  EXPECT_TRUE(torch::allclose(batch.moments.to(torch::kFloat32), vae->encode(normalize_images(stack_images(samples))),
                              2e-3, 2e-3));
  EXPECT_TRUE(torch::allclose(batch.text.to(torch::kFloat32), text->forward(ids), 2e-3, 2e-3));
  EXPECT_EQ(batch.refs[2].id, "archive.tar/6");
  EXPECT_EQ(encoder.images(), 3);
  // The null caption goes the same way.
  EXPECT_TRUE(is_same(encoder.text().null_text(samples[1].tokens), batch.text[1], device()));
}

// Whether convolutions of this thread have been matrix products of our own, while it lives.
class ColumnsWatch {
 public:
  ColumnsWatch()
      : handle_(at::addThreadLocalCallback(at::RecordFunctionCallback(&note).scopes({at::RecordScope::FUNCTION}))) {
    seen_ = false;
  }
  ColumnsWatch(const ColumnsWatch&) = delete;
  ColumnsWatch& operator=(const ColumnsWatch&) = delete;
  ~ColumnsWatch() { at::removeCallback(handle_); }
  static bool saw_columns() { return seen_; }

 private:
  static std::unique_ptr<at::ObserverContext> note(const at::RecordFunction& function) {
    seen_ |= std::string_view(function.name()) == "millrace::convolution_by_columns";
    return nullptr;
  }
  static inline bool seen_ = false;
  at::CallbackHandle handle_;
};

// What bit-equal resume rests on: after a restart a sample meets other neighbours, at another place in the batch.
using ImagesAndChannels = std::pair<int, int>;  // the side of an image, and channels as in make_encoder
class EncoderInvariance : public test::OnDevices<std::tuple<torch::DeviceType, torch::Dtype, ImagesAndChannels>> {};

TEST_P(EncoderInvariance, ASampleDoesNotDependOnItsNeighboursNorItsPlace) {
  const auto [type, dtype, size] = GetParam();
  const auto [resolution, channels] = size;
  auto encoder = make_encoder(device(), dtype, batch_size, channels);
  const ColumnsWatch watch;
  const auto alone = encoder.encode(noise_samples({0}, resolution));
  // bfloat16 takes seconds for each place of the larger two: the first, the last and one between.
  const bool is_long = dtype == torch::kBFloat16 && (resolution == 64 || channels == 512);
  for (int place = 0; place < batch_size; place += is_long ? batch_size / 2 : 1) {
    std::vector<int> numbers;
    for (int i = 0; i < batch_size; ++i) numbers.push_back(i == place ? 0 : 10 * place + i + 1);
    const auto full = encoder.encode(noise_samples(numbers, resolution));
    EXPECT_TRUE(is_same(full.moments[place], alone.moments[0], device())) << "moments at place " << place;
    EXPECT_TRUE(is_same(full.text[place], alone.text[0], device())) << "text at place " << place;
    EXPECT_EQ(full.refs[place].id, alone.refs[0].id);
  }
  const bool is_small_and_deep = resolution < 32;
  EXPECT_EQ(watch.saw_columns(), device().is_cpu() && dtype == torch::kFloat32 && is_small_and_deep);
}

std::string name_of(const testing::TestParamInfo<EncoderInvariance::ParamType>& info) {
  const auto& [type, dtype, size] = info.param;
  return test::name_of(type) + "_" + torch::toString(dtype) + "_" + std::to_string(size.first);
}
INSTANTIATE_TEST_SUITE_P(Devices, EncoderInvariance,
                         testing::Combine(test::all_devices(), testing::Values(torch::kFloat32, torch::kBFloat16),
                                          testing::Values(ImagesAndChannels{32, 64}, ImagesAndChannels{64, 64},
                                                          ImagesAndChannels{4, 64}, ImagesAndChannels{16, 256},
                                                          ImagesAndChannels{20, 512})),
                         name_of);

TEST_P(EncoderOnDevice, AShortBatchGivesWhatAFullOneGives) {
  auto encoder = make_encoder(device());
  const auto full = encoder.encode(noise_samples({0, 1, 2, 3, 4, 5, 6}, 64));
  for (int count = 1; count < batch_size; ++count) {
    auto samples = noise_samples({0, 1, 2, 3, 4, 5, 6}, 64);
    samples.resize(static_cast<std::size_t>(count));
    const auto batch = encoder.encode(samples);
    EXPECT_EQ(batch.refs.size(), static_cast<std::size_t>(count));
    EXPECT_TRUE(is_same(batch.moments, full.moments.slice(0, 0, count), device())) << count;
    EXPECT_TRUE(is_same(batch.text, full.text.slice(0, 0, count), device())) << count;
  }
  EXPECT_EQ(encoder.images(), 7 + 1 + 2 + 3 + 4 + 5 + 6);
}

TEST_P(EncoderOnDevice, ABatchMayBeStartedBeforeTheLastOneIsCollected) {
  auto encoder = make_encoder(device());
  const auto a = noise_samples({0, 1, 2, 3, 4, 5, 6}, 64), b = noise_samples({7, 8, 9}, 64);
  const auto expected_a = encoder.encode(a), expected_b = encoder.encode(b);
  auto started_a = encoder.start(a), started_b = encoder.start(b);
  EXPECT_TRUE(is_cuda() || (started_a.work.is_done() && started_b.work.is_done())) << "the CPU puts nothing off";
  for (auto& [started, expected] : {std::pair(&started_a, &expected_a), std::pair(&started_b, &expected_b)}) {
    const auto batch = encoder.collect(std::move(*started));
    EXPECT_EQ(batch.refs.front().id, expected->refs.front().id);
    EXPECT_EQ(batch.moments.is_pinned(), is_cuda());
    EXPECT_TRUE(is_same(batch.moments, expected->moments, device()));
    EXPECT_TRUE(is_same(batch.text, expected->text, device()));
  }
  EXPECT_EQ(encoder.images(), 2 * (7 + 3));
}

TEST_P(EncoderOnDevice, PixelsAreNormalizedWhereTheyAre) {
  const auto pixels = stack_images(noise_samples({1, 2}, 32));
  const auto expected = pixels.permute({0, 3, 1, 2}).to(torch::kFloat64) / 127.5 - 1;
  const auto images = normalize_images(pixels.to(device()), torch::kBFloat16);
  EXPECT_EQ(images.scalar_type(), torch::kBFloat16);
  EXPECT_TRUE(images.is_contiguous(is_cuda() ? torch::MemoryFormat::ChannelsLast : torch::MemoryFormat::Contiguous));
  EXPECT_LE((images.to(torch::kCPU, torch::kFloat64) - expected).abs().max().item<double>(), 1.0 / 256)
      << "half of bfloat16's last place below 1, and what fp32 adds to it";
}

TEST(ImagesToTensor, AShortBatchEndsInItsLastImage) {
  const auto samples = noise_samples({1, 2}, 8);
  const auto pixels = stack_images(samples, 4, /*pinned=*/false);
  EXPECT_EQ(pixels.sizes(), at::IntArrayRef({4, 8, 8, 3}));
  EXPECT_TRUE(torch::equal(pixels.slice(0, 0, 2), stack_images(samples)));
  for (const int row : {2, 3}) EXPECT_TRUE(torch::equal(pixels[row], pixels[1]));
}

TEST_P(EncoderOnDevice, WithoutATextEncoderCaptionsStayTokens) {
  const auto configs = preset_configs(Preset::tiny);
  auto vae = make_vae(configs.vae, 1);
  nn::place(*vae, device(), torch::kFloat32);
  Encoder encoder(vae, CLIPTextModel(nullptr), device(), torch::kFloat32, batch_size);
  const auto samples = noise_samples({4, 5, 6}, 64);
  const auto batch = encoder.encode(samples);
  EXPECT_TRUE(torch::equal(batch.text, stack_tokens(samples).to(torch::kInt32)));
  EXPECT_THAT(finite_rows(batch), ElementsAre(true, true, true));
  // Whoever has the text encoder makes of them what encoders with one have made.
  auto with_text = make_encoder(device());
  const auto expected = with_text.encode(samples);
  EXPECT_TRUE(is_same(batch.moments, expected.moments, device()));
  EXPECT_TRUE(is_same(with_text.text().encode(batch.text).cpu(), expected.text, device()));
}

TEST(Encoder, MoreThanABatchIsAMistakeOfOurs) {
  auto encoder = make_encoder(torch::kCPU, torch::kFloat32, 1);
  EXPECT_THROW(encoder.encode(noise_samples({0, 1}, 32)), Error);
}

TEST_P(EncoderOnDevice, ACaptionDoesNotDependOnHowManyThereAre) {
  const auto configs = preset_configs(Preset::tiny);
  TextEncoder encoder(make_text_encoder(configs.text_encoder, 1, configs.token_embedding_std), device(),
                      torch::kFloat32, /*batch_size=*/3);
  const auto samples = noise_samples({0, 1, 2, 3, 4, 5, 6, 7}, 2);
  const auto tokens = stack_tokens(samples);
  const auto all = encoder.encode(tokens);
  EXPECT_EQ(all.scalar_type(), torch::kHalf);
  EXPECT_FALSE(all.requires_grad());
  for (int count = 1; count < 8; ++count)
    EXPECT_TRUE(is_same(encoder.encode(tokens.slice(0, 8 - count)), all.slice(0, 8 - count), device())) << count;
  EXPECT_TRUE(is_same(encoder.null_text(samples[5].tokens), all[5].cpu(), device()));
}

TEST(TextEncoder, TokensOfAnotherVocabularyAreNamed) {
  const auto configs = preset_configs(Preset::tiny);
  TextEncoder encoder(make_text_encoder(configs.text_encoder, 1), torch::kCPU, torch::kFloat32, 2);
  for (const int id : {-1, 49408}) {
    auto tokens = noise_sample(1, 2).tokens;
    tokens[40] = id;
    const auto ids = torch::tensor(at::ArrayRef<std::int32_t>(tokens.data(), tokens.size()), torch::kInt32);
    try {
      encoder.check(ids, "a.tar/7");
      ADD_FAILURE() << id << " was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.exit(), Exit::io);
      EXPECT_THAT(error.what(), testing::HasSubstr("a.tar/7: token id " + std::to_string(id)));
    }
    EXPECT_THROW(encoder.null_text(tokens), Error);
  }
}

TEST(FiniteRows, LeavesOutEveryRowWithANonFiniteNumber) {
  EncodedBatch batch;
  batch.refs.resize(5);
  for (int i = 0; i < 5; ++i) batch.refs[i].id = std::to_string(i);
  batch.moments = torch::zeros({5, 8, 2, 2}, torch::kHalf);
  batch.text = torch::zeros({5, 77, 4}, torch::kHalf);
  EXPECT_THAT(finite_rows(batch), Each(true));
  batch.moments[1][7][1][1] = std::numeric_limits<float>::quiet_NaN();
  batch.text[4][0][3] = -std::numeric_limits<float>::infinity();
  batch.moments[2] = 65504;  // the largest f16 is a number like any other
  EXPECT_THAT(finite_rows(batch), ElementsAre(true, false, true, true, false));

  const auto kept = select_rows(batch, {3, 2});
  EXPECT_EQ(kept.refs[0].id, "3");
  EXPECT_EQ(kept.refs[1].id, "2");
  EXPECT_TRUE(torch::equal(kept.moments[1], batch.moments[2]));
  EXPECT_TRUE(kept.moments.is_contiguous() && kept.text.is_contiguous());
  EXPECT_THAT(finite_rows(select_rows(batch, {})), ElementsAre());
}

}  // namespace
}  // namespace millrace
