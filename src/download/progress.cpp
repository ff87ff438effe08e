#include "millrace/download/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "millrace/core/log.h"
#include "millrace/core/units.h"

namespace millrace {

namespace {

constexpr int shown_failures = 3;

}  // namespace

std::int64_t DownloadCounts::rows() const {
  return std::accumulate(failures.begin(), failures.end(), successes);
}

std::string DownloadCounts::describe() const {
  const double all = static_cast<double>(std::max<std::int64_t>(1, rows()));
  std::string text = fmt::format("{:.1f}% of {} rows", 100 * successes / all, rows());
  std::vector<std::size_t> kinds(failures.size());
  std::iota(kinds.begin(), kinds.end(), 0);
  std::stable_sort(kinds.begin(), kinds.end(), [&](auto a, auto b) { return failures[a] > failures[b]; });
  for (int i = 0; i < shown_failures && failures[kinds[i]] > 0; ++i)
    text += fmt::format(", {} {:.1f}%", to_string(static_cast<FailureKind>(kinds[i])), 100 * failures[kinds[i]] / all);
  return text;
}

DownloadCounts reduce(const Group& group, const DownloadCounts& mine) {
  std::vector<std::int64_t> numbers(mine.failures.begin(), mine.failures.end());
  numbers.insert(numbers.end(), {mine.successes, mine.retryable, mine.shards, mine.shards_before});
  group.all_reduce_sum(std::span(numbers));
  DownloadCounts all;
  const auto rest = std::copy_n(numbers.begin(), failure_kind_count, all.failures.begin()) - all.failures.begin();
  all.successes = numbers[rest];
  all.retryable = numbers[rest + 1];
  all.shards = numbers[rest + 2];
  all.shards_before = numbers[rest + 3];
  return all;
}

DownloadCounts DownloadProgress::counts() const {
  DownloadCounts counts;
  counts.successes = successes_;
  std::copy(failures_.begin(), failures_.end(), counts.failures.begin());
  counts.retryable = retryable_;
  counts.shards = shards_;
  counts.shards_before = shards_before_;
  return counts;
}

double DownloadProgress::seconds() const {
  return since_start_.seconds();
}

std::string DownloadProgress::describe(const DownloadState& state) const {
  const double now = std::max(seconds(), 1e-3);
  const DownloadCounts mine = counts();
  const std::string whose = state.ranks > 1 ? fmt::format("rank 0 of {}: ", state.ranks) : "";
  const std::string where = state.lists > 1 ? fmt::format(", list {} of {}", state.list, state.lists) : "";
  const std::string pause = *state.pause ? fmt::format(", others for {}", state.pause) : "";
  return fmt::format("{}{} archives{} | {} | {:.0f} img/s | {} rows wait, {} transfers{} | elapsed {}", whose,
                     mine.shards, where, mine.describe(), mine.successes / now, state.waiting_rows, state.transfers,
                     pause, format_time(now));
}

void DownloadProgress::show(const DownloadState& state) {
  const double now = seconds();
  if (now - last_line_seconds_ < (log::on_terminal() ? 0.5 : 10)) return;
  last_line_seconds_ = now;
  const std::string text = describe(state);
  if (log::on_terminal()) {
    log::progress(text);
  } else {
    log::info("{}", text);
  }
}

}  // namespace millrace
