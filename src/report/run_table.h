#pragma once
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/report/document.h"
#include "millrace/report/run_record.h"

namespace millrace {

using Runs = std::span<const RunRecord>;
using TellRun = std::function<std::string(const RunRecord&)>;

// A row per thing, a column per run. Rows that no run fills are left out.
class RunTable {
 public:
  explicit RunTable(Runs runs);
  void add(const std::string& name, const TellRun& tell);
  bool is_empty() const { return table_.rows.empty(); }
  ReportTable take() { return std::move(table_); }

 private:
  Runs runs_;
  ReportTable table_;
};

// Without the columns that say nothing; gaps in the others are dashes.
ReportTable without_empty_columns(const ReportTable& table);

// What stands for cells. All are empty where there is nothing to tell.
std::string percent(double share);
std::string with_unit(double value, std::string_view unit);

// Of the second half of a run, the median: its beginning tunes and fills queues. NaN where there is none.
double usual(const Series& series);
// `factor` x part / whole at the steps that both have.
Series ratio(const Series& part, const Series& whole, double factor);
// Exponential, over a hundredth of the run.
Series smoothed(const Series& series);

}  // namespace millrace
