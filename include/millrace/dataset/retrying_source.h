#pragma once
#include <memory>

#include "millrace/dataset/source.h"
#include "millrace/dataset/storage_retry.h"

namespace millrace {

// Another source, whose readers outlast storage that stays away for a while: a reader that meets a StorageError is
// thrown away, and a new one is opened at the row that is due. So rows and their order are what they were without the
// fault, and no row is given twice.
class RetryingSource final : public SampleSource {
 public:
  // Both must outlive it and its readers.
  RetryingSource(const SampleSource& source, StorageRetry& retry) : source_(source), retry_(retry) {}
  std::unique_ptr<SplitReader> open(const Split& split, std::uint64_t first_row) const override;

 private:
  const SampleSource& source_;
  StorageRetry& retry_;
};

}  // namespace millrace
