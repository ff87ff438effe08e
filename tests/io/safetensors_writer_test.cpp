#include <algorithm>

#include "millrace/io/safetensors.h"
#include "millrace/io/safetensors_writer.h"
#include "support.h"

namespace millrace::test {
namespace {

// Everything in a file, in an order that has nothing to do with the file's; `bytes` holds it.
std::vector<TensorBytes> shuffled_tensors(const SafetensorsFile& file, std::vector<std::vector<std::byte>>& bytes) {
  std::vector<TensorBytes> tensors;
  for (const TensorInfo& info : file.tensors()) {
    bytes.push_back(file.bytes(info));  // a span of what it holds stays one when the vector around it grows
    tensors.push_back({{info.name, info.dtype, info.shape}, bytes.back()});
  }
  std::sort(tensors.begin(), tensors.end(),
            [](const auto& a, const auto& b) { return hash64(a.spec.name) < hash64(b.spec.name); });
  return tensors;
}

TEST(SafetensorsWriter, WritesTheReferenceLibrarysBytes) {
  const ScratchDirectory scratch;
  for (const char* name : {"every_dtype", "shapes", "unet_like", "nothing", "no_metadata"}) {
    SCOPED_TRACE(name);
    const fs::path reference = golden(fmt::format("safetensors/{}.safetensors", name));
    const SafetensorsFile file(reference);
    std::vector<std::vector<std::byte>> contents;
    const auto written =
        save_safetensors(scratch / "copy.safetensors", shuffled_tensors(file, contents), file.metadata());
    const std::string bytes = read_file(scratch / "copy.safetensors");
    EXPECT_EQ(bytes, read_file(reference));
    EXPECT_EQ(written.bytes, bytes.size());
    EXPECT_EQ(written.digest, hash128(bytes));
  }
}

TEST(SafetensorsWriter, TheDefaultMetadataIsWhatLoadersWant) {
  const ScratchDirectory scratch;
  SafetensorsWriter(scratch / "a.safetensors", {}).commit();
  EXPECT_EQ(read_file(scratch / "a.safetensors"), read_file(golden("safetensors/nothing.safetensors")));
}

TEST(SafetensorsWriter, TakesPiecesInFileOrder) {
  const ScratchDirectory scratch;
  SafetensorsWriter writer(scratch / "a.safetensors",
                           {{"b", DType::f32, {2}}, {"a", DType::f32, {0}}, {"z", DType::i64, {}}});
  std::vector<std::string> order;
  for (const TensorSpec& spec : writer.order()) order.push_back(spec.name);
  EXPECT_EQ(order, (std::vector<std::string>{"z", "a", "b"}));
  writer.write("z", as_bytes("01234567"));
  writer.write("b", as_bytes("abc"));
  writer.write("b", as_bytes("defgh"));
  writer.commit();
  const SafetensorsFile file(scratch / "a.safetensors");
  EXPECT_EQ(as_text(file.bytes("b")), "abcdefgh");
  EXPECT_EQ(as_text(file.bytes("z")), "01234567");
  EXPECT_EQ(file.bytes("a").size(), 0u);
  const auto header = read_safetensors_header(InputFile(file.path().string()), "a");
  EXPECT_EQ((header.data_offset + file.info("z").begin) % 8, 0u);
}

TEST(SafetensorsWriter, MisuseIsABugAndLeavesNoFile) {
  const ScratchDirectory scratch;
  const fs::path path = scratch / "a.safetensors";
  const std::vector<TensorSpec> two = {{"a", DType::u8, {2}}, {"b", DType::u8, {2}}};
  const auto bug = [](auto call) { EXPECT_EQ(error_of(call).exit(), Exit::bug); };
  bug([&] { SafetensorsWriter(path, two).write("b", as_bytes("xx")); });
  bug([&] { SafetensorsWriter(path, two).write("a", as_bytes("xxx")); });
  bug([&] { SafetensorsWriter(path, two).commit(); });
  bug([&] {
    SafetensorsWriter writer(path, two);
    writer.write("a", as_bytes("xx"));
    writer.write("b", as_bytes("x"));
    writer.commit();
  });
  bug([&] { SafetensorsWriter(path, {{"a", DType::u8, {1}}, {"a", DType::u8, {1}}}); });
  bug([&] { SafetensorsWriter(path, {{"__metadata__", DType::u8, {1}}}); });
  bug([&] { SafetensorsWriter(path, {{"a", DType::f4, {1}}}); });
  EXPECT_TRUE(fs::is_empty(scratch.path()));
}

}  // namespace
}  // namespace millrace::test
