#include "millrace/dataset/retrying_source.h"

#include <utility>

namespace millrace {

namespace {

// NOTE [Commands that fail]: whether storage failed or the archive is damaged, a command ends with a status; the
// second ends at the same row again. Then the rows before it were read anew without a fault, a few times over, and its
// failure is the archive's. At the first row nothing was read that could tell, so that counts as storage.
constexpr int same_failures = 3;

constexpr const char* without_it =
    "to go on without this archive, take it out of the data's path (checkpoint.allow_changes=true where the run has "
    "begun)";

class RetryingReader final : public SplitReader {
 public:
  RetryingReader(const SampleSource& source, StorageRetry& retry, const Split& split, std::uint64_t first_row)
      : source_(source), retry_(retry), split_(split), next_(first_row) {}

  std::optional<RawRow> next() override {
    failures_here_ = failures_to_open_ = 0;
    auto row = retry_.run([&] { return try_next(); });
    ++next_;
    return row;
  }

 private:
  std::optional<RawRow> try_next() {
    try {
      if (!reader_) reader_ = open();
      return next_of_reader();
    } catch (const StorageError&) {
      reader_.reset();
      throw;
    } catch (const AccessError& error) {
      throw Error(Exit::io, error.what(), error.hint_and(without_it));
    }
  }

  // The failure of a command may itself be the row before, as a checkpoint has it.
  std::unique_ptr<SplitReader> open() {
    try {
      return source_.open(split_, next_);
    } catch (const CommandFailed&) {
      if (next_ < 2 || ++failures_to_open_ < same_failures) throw;
    }
    auto reader = source_.open(split_, next_ - 1);
    try {
      reader->next();
    } catch (const CommandFailed&) {
      reader->next();
    }
    return reader;
  }

  std::optional<RawRow> next_of_reader() {
    try {
      return reader_->next();
    } catch (const CommandFailed&) {
      if (next_ == 0 || ++failures_here_ < same_failures) throw;
      return reader_->next();
    }
  }

  const SampleSource& source_;
  StorageRetry& retry_;
  const Split split_;
  std::uint64_t next_;  // row of the split
  int failures_here_ = 0, failures_to_open_ = 0;
  std::unique_ptr<SplitReader> reader_;
};

}  // namespace

std::unique_ptr<SplitReader> RetryingSource::open(const Split& split, std::uint64_t first_row) const {
  return std::make_unique<RetryingReader>(source_, retry_, split, first_row);
}

}  // namespace millrace
