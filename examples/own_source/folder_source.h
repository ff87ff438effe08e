#pragma once
#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "millrace/core/files.h"
#include "millrace/core/text.h"
#include "millrace/dataset/row.h"
#include "millrace/dataset/source.h"

namespace example {

using namespace millrace;

// A folder of pairs NAME.jpg and NAME.txt as one archive. Its rows are the images in the order of their names, so every
// rank and every restart finds the same row under the same number.
class FolderSource final : public SampleSource {
 public:
  explicit FolderSource(const fs::path& folder) : folder_(fs::canonical(folder)) {
    for (const auto& entry : fs::directory_iterator(folder_))
      if (entry.path().extension() == ".jpg") names_.push_back(entry.path().stem().string());
    std::sort(names_.begin(), names_.end());
    Archive& archive = manifest_.archives.emplace_back();
    archive.path = folder_.string();
    archive.name = folder_.filename().string();
    archive.seekable = true;  // any row can be reached, so several stripes may share the folder
    archive.rows = names_.size();
  }

  const Manifest& manifest() const { return manifest_; }

  // The split has the rows index, index + count, index + 2 count...; reading starts at its row `first_row`.
  std::unique_ptr<SplitReader> open(const Split& split, std::uint64_t first_row) const override {
    return std::make_unique<Reader>(*this, split.index + first_row * split.count, split.count);
  }

 private:
  class Reader final : public SplitReader {
   public:
    Reader(const FolderSource& source, std::uint64_t row, std::uint64_t stride)
        : source_(source), row_(row), stride_(stride) {}

    std::optional<RawRow> next() override {
      if (row_ >= source_.names_.size()) return std::nullopt;
      return source_.row(source_.names_[std::exchange(row_, row_ + stride_)]);
    }

   private:
    const FolderSource& source_;
    std::uint64_t row_;
    const std::uint64_t stride_;
  };

  // A bad sample is a row like any other, with a reason; an exception would end the run.
  RawRow row(const std::string& name) const {
    RawSample sample;
    sample.ref = name_row(manifest_.archives[0], name);  // FOLDER/NAME, as it stands in ids and in the ledger
    const fs::path caption = folder_ / (name + ".txt");
    if (!fs::is_regular_file(caption))
      return Rejected{sample.ref, RejectReason::missing_caption, "no " + caption.string()};
    sample.caption = valid_utf8(read_file(caption));
    sample.image_uri = (folder_ / (name + ".jpg")).string();  // read when it is this sample's turn
    return sample;
  }

  fs::path folder_;
  std::vector<std::string> names_;  // without .jpg
  Manifest manifest_;
};

}  // namespace example
