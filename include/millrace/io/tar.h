#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "millrace/io/input_file.h"
#include "millrace/io/net/stream.h"

// WebDataset archives: tar files, plain or compressed (gz, bz2, xz, zst), whose neighbouring members `KEY.FIELD` form
// samples.
namespace millrace {

struct TarSample {
  std::string key;                                          // directories included, a leading "./" left out
  std::vector<std::pair<std::string, std::string>> fields;  // (field in lower case, bytes), in the archive's order
  std::uint64_t begin = 0, end = 0;  // where it lies in a plain file, headers included; 0, 0 = unknown
  bool oversized = false;            // some wanted bytes were left out, or some fields
};

// Of a sample: in a tar all its members, in a table its image.
inline constexpr std::uint64_t max_sample_bytes = 256ull << 20;

struct TarOptions {
  std::vector<std::string> fields;  // fields to read the bytes of; empty = all. The others are named only.
  std::uint64_t max_sample_bytes =
      millrace::max_sample_bytes;  // of wanted fields; a member that exceeds it comes without bytes
};

// Why an archive could not be read to its end; the whole of it counts once.
struct BrokenArchive {
  std::string message;             // names the archive and the place
  std::string input_failure = {};  // why whatever gave the bytes failed before the archive's end, as a command may
};

// The samples of one archive in stream order. Any call: AccessError when bytes are kept away. NOTE [What makes a
// sample]: regular files only (no directories, links, devices); members below `__...__`, without an extension or with
// one of more than 255 bytes, and macOS's `._NAME` are left out; the extension starts at the first dot of the last path
// component; a new key, or a field the sample has already, starts a new sample. Same as webdataset, but for `._NAME`,
// which is a sample to it, and the repeated field, which it refuses. Fields from the 1001st on are left out.
class TarReader {
 public:
  // A path or any URL of open_stream. What is wrong inside is `error()`.
  explicit TarReader(const std::string& url, TarOptions options = {});
  TarReader(std::unique_ptr<ByteStream> stream, std::string name, TarOptions options = {});
  ~TarReader();
  TarReader(TarReader&&) noexcept;
  TarReader& operator=(TarReader&&) noexcept;

  // The next sample, or nothing at the end of the archive or of its readable part.
  std::optional<TarSample> next();
  // Passes over up to `samples` samples and returns how many there were; only headers are read from a plain file.
  std::uint64_t skip(std::uint64_t samples);
  // As skip(1), with what was passed over: next() without the bytes.
  std::optional<TarSample> skip_one();
  // Set once the readable part has ended before the archive's end mark, or the command behind it has failed.
  const std::optional<BrokenArchive>& error() const;
  // Of a plain file, behind the end mark where that was reached; 0 when it is little, or zeros. A warning tells of
  // them.
  std::uint64_t unread_bytes() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// The sample that lies at [begin, end) of a plain archive, as TarSample tells it, whose own places are unknown then.
// Nothing where none is there any more; a member that is cut within the zeros behind it is whole.
std::optional<TarSample> read_tar_sample(const InputFile& file, std::uint64_t begin, std::uint64_t end,
                                         TarOptions options);

}  // namespace millrace
