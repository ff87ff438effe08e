#pragma once
#include <atomic>
#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "image.h"
#include "millrace/download/download_config.h"
#include "millrace/download/failure.h"
#include "spool.h"
#include "url_lists.h"

namespace millrace {

// What became of one row; neither image nor failure = nothing yet.
struct RowOutcome {
  std::optional<StoredImage> image;  // its bytes are in the spool
  Spool::Place place;
  bool is_old = false;  // they are not: the archive that this one will replace has them
  std::optional<Failure> failure;
};

// The rows of one archive while they are downloaded. Different rows may be filled by different threads.
class Shard {
 public:
  Shard(ListSlice slice, const fs::path& out);

  std::uint64_t number() const { return slice_.shard; }
  const ListSlice& slice() const { return slice_; }
  const ListRow& row(std::size_t index) const { return slice_.rows[index]; }
  std::size_t rows() const { return slice_.rows.size(); }

  void store(std::size_t index, StoredImage image);
  void store(std::size_t index, Failure failure);
  // An image that the finished archive has; its bytes stay there.
  void keep(std::size_t index, StoredImage image);
  const RowOutcome& outcome(std::size_t index) const { return outcomes_[index]; }
  // Of an image that is not old.
  std::string image_bytes(std::size_t index) const { return spool_.read(outcomes_[index].place); }

  // Rows that are asked for; the one who finishes the last of them writes the archive.
  void expect(std::size_t rows) { expected_ = rows; }
  bool finish_one() { return --expected_ == 0; }

  std::chrono::system_clock::time_point started() const { return started_; }

 private:
  const ListSlice slice_;
  std::vector<RowOutcome> outcomes_;
  Spool spool_;
  std::atomic<std::size_t> expected_{0};
  const std::chrono::system_clock::time_point started_ = std::chrono::system_clock::now();
};

// How many rows of a shard came to what.
struct ShardCounts {
  std::int64_t rows = 0, successes = 0, failed_to_download = 0, failed_to_resize = 0;
  std::map<std::string, std::int64_t> messages;
};
ShardCounts count(const Shard& shard);

// img2dataset's word for it: success, failed_to_download, failed_to_resize.
const char* status_of(const RowOutcome& outcome);

}  // namespace millrace
