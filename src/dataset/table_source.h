#pragma once
#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "class_prompts.h"
#include "millrace/dataset/source.h"
#include "millrace/dataset/table.h"
#include "sample_columns.h"

namespace millrace {

// Rows of tables: Parquet files, and lists of paths and addresses. A split reads the whole file and keeps every k-th
// row, so many small files are better than few large ones.
class TableSource final : public SampleSource {
 public:
  // `prompts`: of a class data set.
  TableSource(const SourceConfig& config, const Manifest& manifest, std::optional<ClassPrompts> prompts)
      : config_(config), manifest_(manifest), prompts_(std::move(prompts)) {}
  std::unique_ptr<SplitReader> open(const Split& split, std::uint64_t first_row) const override;

 private:
  // Row -> 2 for a key's second sample, 3...; nothing without a key column.
  using Repeated = std::map<std::uint64_t, int>;
  struct Survey {
    std::mutex mutex;
    std::optional<Repeated> repeated;
  };
  const Repeated& repeated_in(std::uint32_t archive) const;
  std::unique_ptr<SplitReader> open_rows(const Split& split, std::uint64_t first_row) const;
  // `fields`: of filters, which the table lacks.
  void warn_of_missing_fields(const std::vector<std::string>& fields, const std::vector<TableColumn>& table,
                              const std::string& path) const;
  void warn_of_unfit(std::uint32_t archive, const std::string& why) const;

  const SourceConfig config_;
  const Manifest& manifest_;
  const std::optional<ClassPrompts> prompts_;
  mutable std::mutex mutex_;
  mutable std::map<std::uint32_t, Survey> surveys_;
  mutable std::set<std::uint32_t> unfit_;  // archives without a column, which were warned of
  mutable std::atomic<bool> warned_ = false;
};

}  // namespace millrace
