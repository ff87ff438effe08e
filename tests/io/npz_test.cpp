#include "millrace/io/npz.h"

#include <archive.h>
#include <archive_entry.h>

#include <memory>

#include "support.h"

namespace millrace::test {
namespace {

// numpy's file of one array, version 1.
std::string npy(const std::string& shape, std::size_t data_bytes, const std::string& more = "") {
  const std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (" + shape + "), }" + more + "\n";
  std::string bytes = "\x93NUMPY\x01";
  bytes += '\0';
  bytes += static_cast<char>(header.size() & 255);
  bytes += static_cast<char>(header.size() >> 8);
  return bytes + header + std::string(data_bytes, '\0');
}

// A .npz with this member beside a sound one of three numbers.
fs::path write_npz(const ScratchDirectory& scratch, const std::string& member) {
  fs::path path = scratch / "a.npz";
  const std::unique_ptr<archive, int (*)(archive*)> zip(archive_write_new(), archive_write_free);
  archive_write_set_format_zip(zip.get());
  archive_write_open_filename(zip.get(), path.c_str());
  for (const auto& [name, bytes] : {std::pair{"sound.npy", npy("3,", 12)}, std::pair{"odd.npy", member}}) {
    const std::unique_ptr<archive_entry, void (*)(archive_entry*)> entry(archive_entry_new(), archive_entry_free);
    archive_entry_set_pathname(entry.get(), name);
    archive_entry_set_filetype(entry.get(), AE_IFREG);
    archive_entry_set_size(entry.get(), static_cast<la_int64_t>(bytes.size()));
    archive_write_header(zip.get(), entry.get());
    archive_write_data(zip.get(), bytes.data(), bytes.size());
  }
  archive_write_close(zip.get());
  return path;
}

TEST(Npz, ReadsItsArrays) {
  const ScratchDirectory scratch;
  const auto arrays = read_npz(write_npz(scratch, npy("2, 2", 16)));
  ASSERT_EQ(arrays.size(), 2u);
  EXPECT_EQ(arrays.at("odd").shape, (std::vector<std::int64_t>{2, 2}));
  EXPECT_EQ(arrays.at("sound").values, std::vector<double>(3));
}

TEST(Npz, AShapeBeyondAllNumbersIsDamage) {
  const ScratchDirectory scratch;
  for (const char* shape : {"99999999999999999999,", "4294967296, 4294967296", "9223372036854775807, 3"}) {
    const Error error = error_of([&] { read_npz(write_npz(scratch, npy(shape, 0))); });
    EXPECT_EQ(error.exit(), Exit::io) << shape;
    EXPECT_NE(std::string(error.what()).find("odd.npy"), std::string::npos) << error.what();
  }
}

// A few zeros in a .npz may stand for any number of them.
TEST(Npz, NoMoreIsReadThanItsHeaderTells) {
  const ScratchDirectory scratch;
  const auto said_of = [&](const std::string& shape, std::size_t bytes) {
    const Error error = error_of([&] { read_npz(write_npz(scratch, npy(shape, bytes))); });
    EXPECT_EQ(error.exit(), Exit::io);
    EXPECT_NE(std::string(error.what()).find("a.npz: odd.npy"), std::string::npos) << error.what();
    return std::string(error.what());
  };
  for (const std::size_t bytes : {11, 13, 1 << 24})
    EXPECT_NE(said_of("3,", bytes).find("not the 12 bytes that its shape needs"), std::string::npos) << bytes;
  for (const char* shape : {"300000000,", "4611686018427387904,", "9223372036854775807,"})
    EXPECT_NE(said_of(shape, 0).find("more than a file of this size may hold"), std::string::npos) << shape;
}

TEST(Npz, AHeaderLongerThanNumbersNeedIsLeftOut) {
  const ScratchDirectory scratch;
  EXPECT_EQ(read_npz(write_npz(scratch, npy("3,", 12, std::string(60000, ' ')))).size(), 1u);
}

}  // namespace
}  // namespace millrace::test
