#include "tensor_digest.h"

#include <gtest/gtest.h>
#include <torch/utils.h>

#include <random>

namespace millrace {
namespace {

using torch::Tensor;

std::string digest(const Tensor& tensor) {
  return digest_of(std::span(&tensor, 1));
}

Tensor with_bit_flipped(const Tensor& tensor, std::int64_t element, int bit) {
  auto copy = tensor.clone();
  auto words = copy.view(tensor.element_size() == 4 ? torch::kInt32 : torch::kInt16);
  words[element].bitwise_xor_(torch::tensor(std::int64_t{1} << bit).to(words.dtype()));
  return copy;
}

TEST(TensorDigest, EveryFlippedBitChangesIt) {
  std::mt19937 random(7);
  for (const auto dtype : {torch::kFloat32, torch::kBFloat16}) {
    const auto tensor = torch::randn({1000}).to(dtype);
    const auto checksum = checksum_of(tensor).item<std::int64_t>();
    EXPECT_EQ(checksum_of(tensor.clone()).item<std::int64_t>(), checksum);
    for (int trial = 0; trial < 200; ++trial) {
      const auto element = static_cast<std::int64_t>(random() % 1000);
      const auto flipped = with_bit_flipped(
          tensor, element, static_cast<int>(random() % (8 * static_cast<unsigned>(tensor.element_size()))));
      EXPECT_NE(checksum_of(flipped).item<std::int64_t>(), checksum) << element;
      EXPECT_NE(digest(flipped), digest(tensor)) << element;
    }
  }
}

TEST(TensorDigest, TheOrderCounts) {
  const auto tensor = torch::arange(100, torch::kFloat32);
  EXPECT_NE(checksum_of(tensor.flip(0)).item<std::int64_t>(), checksum_of(tensor).item<std::int64_t>());
  EXPECT_NE(digest(tensor.flip(0).contiguous()), digest(tensor));
}

// Longer than what is computed at once, against the definition.
TEST(TensorDigest, ChecksumIsTheSumOfItsDefinition) {
  const std::int64_t n = (1 << 22) + 1001;
  const auto words = torch::randint(-2147483648LL, 2147483647LL, {n}, torch::kInt64).to(torch::kInt32);
  std::uint64_t sum = 0;
  const auto* data = words.data_ptr<std::int32_t>();
  for (std::int64_t i = 0; i < n; ++i)
    sum += static_cast<std::uint64_t>(std::int64_t{data[i]}) * static_cast<std::uint64_t>(2 * i + 1);
  EXPECT_EQ(static_cast<std::uint64_t>(checksum_of(words.view(torch::kFloat32)).item<std::int64_t>()), sum);
}

}  // namespace
}  // namespace millrace
