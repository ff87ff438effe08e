#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "core/temp_dir.h"
#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/models/tensors.h"

namespace millrace {
namespace {

fs::path file(const std::string& name) {
  static const test::TempDir folder;
  return folder / name;
}

TEST(Tensors, ComeBackAsTheyWereWritten) {
  const Tensors written = {{"f32", torch::randn({2, 3})},
                           {"bf16", torch::randn({5}).to(torch::kBFloat16)},
                           {"f16", torch::randn({1, 7}).to(torch::kFloat16)},
                           {"i64", torch::arange(4)},
                           {"bool", torch::tensor({true, false})},
                           {"scalar", torch::tensor(3.5)},
                           {"empty", torch::empty({0, 4})}};
  write_tensors(file("round.safetensors"), written);
  const Tensors read = read_tensors(file("round.safetensors"));
  ASSERT_EQ(read.size(), written.size());
  for (const auto& [name, tensor] : written) {
    EXPECT_EQ(read.at(name).scalar_type(), tensor.scalar_type()) << name;
    EXPECT_TRUE(torch::equal(read.at(name), tensor)) << name;
  }
}

TEST(Tensors, AreWrittenRowMajorWhateverTheirLayout) {
  const auto image = torch::arange(24, torch::kFloat32).view({1, 2, 3, 4});
  write_tensors(file("layout.safetensors"),
                {{"last", image.contiguous(torch::MemoryFormat::ChannelsLast)}, {"transposed", image.transpose(2, 3)}});
  const Tensors read = read_tensors(file("layout.safetensors"));
  EXPECT_TRUE(read.at("last").is_contiguous());
  EXPECT_TRUE(torch::equal(read.at("last"), image));
  EXPECT_TRUE(torch::equal(read.at("transposed"), image.transpose(2, 3)));
}

// Files of old writers are not padded.
TEST(Tensors, MayStartAtAnyByte) {
  const std::string header =
      R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"F32","shape":[2],"data_offsets":[1,9]}} )";
  std::string content(8, '\0');
  const std::uint64_t length = header.size();
  std::memcpy(content.data(), &length, 8);
  content += header + '\7';
  const float values[] = {1.5f, -2};
  content.append(reinterpret_cast<const char*>(values), sizeof values);
  write_file_atomically(file("odd.safetensors"), content);
  EXPECT_TRUE(torch::equal(read_tensors(file("odd.safetensors")).at("b"), torch::tensor({1.5f, -2.f})));
}

TEST(Tensors, NameTheTensorOfAnUnsupportedType) {
  const std::string header = R"({"strange":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}})";
  std::string content(8, '\0');
  const std::uint64_t length = header.size();
  std::memcpy(content.data(), &length, 8);
  write_file_atomically(file("f4.safetensors"), content + header + 'x');
  try {
    read_tensors(file("f4.safetensors"));
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::io);
    EXPECT_NE(std::string(error.what()).find("strange"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace millrace
