#include "millrace/core/philox.h"
#include "millrace/kernels/ops.h"
#include "testing.h"

namespace millrace::kernels {
namespace {

using torch::Tensor;
using Normals = OnDevice;

Tensor words_of(const std::vector<RngKey>& keys, Purpose purpose) {
  const auto words = torch::empty({std::ssize(keys), 5}, torch::kInt32);
  for (std::size_t i = 0; i < keys.size(); ++i)
    std::ranges::copy(philox_words(keys[i], purpose), words[static_cast<std::int64_t>(i)].data_ptr<std::int32_t>());
  return words;
}

// Keys with all bits in use, epochs at both ends of their 24 bits.
std::vector<RngKey> some_keys(std::size_t count) {
  std::vector<RngKey> keys;
  for (std::uint64_t i = 0; i < count; ++i)
    keys.push_back({0xFEDCBA9876543210u * (i + 1), 0x9E3779B97F4A7C15u * (i + 3),
                    i % 2 ? 0xFFFFFFu - static_cast<std::uint32_t>(i) : static_cast<std::uint32_t>(i)});
  return keys;
}

// One number, odd tails, SD2's latents at 256 and 768 px, more than a grid takes at once, channels of noise_offset.
TEST_P(Normals, AreThoseOfTheHostToTheBit) {
  const std::vector<std::vector<std::int64_t>> shapes{{1},         {3},         {7, 1},           {4, 1, 1},
                                                      {4, 32, 32}, {4, 96, 96}, {1050 * 1024 + 1}};
  for (const auto& shape : shapes) {
    for (const auto purpose : {Purpose::noise, Purpose::initial_latents}) {
      const auto keys = some_keys(shape.size() == 1 ? 2 : 5);
      auto sizes = shape;
      sizes.insert(sizes.begin(), std::ssize(keys));
      auto expected = torch::empty(sizes);
      for (std::size_t i = 0; i < keys.size(); ++i) {
        const auto row = expected[static_cast<std::int64_t>(i)];
        fill_normal(keys[i], purpose, {row.data_ptr<float>(), static_cast<std::size_t>(row.numel())});
      }
      const auto made = unit_normals(words_of(keys, purpose).to(device()), sizes);
      EXPECT_EQ(made.device().type(), device().type());
      EXPECT_TRUE(torch::equal(made.cpu(), expected)) << expected.sizes();
    }
  }
}

TEST_P(Normals, RefuseWhatIsNoWords) {
  expect_error([&] { unit_normals(torch::zeros({2, 4}, torch::kInt32).to(device()), {2, 3}); }, "words has shape");
  expect_error([&] { unit_normals(torch::zeros({2, 5}).to(device()), {2, 3}); }, "words has type");
  expect_error([&] { unit_normals(torch::zeros({2, 5}, torch::kInt32).to(device()), {3, 3}); }, "sizes is");
}

MILLRACE_TEST_KERNELS(Normals);

}  // namespace
}  // namespace millrace::kernels
