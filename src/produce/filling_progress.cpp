#include "millrace/produce/filling_progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "millrace/comm/agree.h"
#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/log.h"
#include "millrace/core/run_files.h"
#include "millrace/core/units.h"
#include "millrace/loader/bad_share.h"

namespace millrace {

void FillingProgress::reduce(const LedgerDelta& delta, std::int64_t encoded_here, bool ended,
                             const std::string& filters) {
  encoded_ = encoded_here;
  group_.all_reduce_sum(std::span(&encoded_, 1));
  const auto parts = group_.gather_strings(delta.to_bytes());
  const auto reports = group_.gather_strings(filters);
  on_root(group_, [&] {
    for (const auto& part : parts) ledger_.merge(LedgerDelta::from_bytes(part));
    if (encoded_ > 0) remove_done();
    judge(ended, reports);
    if (ended) write_ledger();
  });
}

void FillingProgress::judge(bool ended, const std::vector<std::string>& filter_reports) const {
  try {
    check_bad_share(ledger_, data_, max_bad_share_, ended);
  } catch (const Error& error) {
    try {
      write_ledger();
    } catch (const Error& failed) {  // the worse news is the one below
      log::warning("ledger.json was not written: {}", failed.what());
    }
    const auto report = std::ranges::find_if(filter_reports, [](const auto& text) { return !text.empty(); });
    if (report == filter_reports.end() || ledger_.total().accepted > 0) throw;
    throw Error(error.exit(), fmt::format("{}\n{}", error.what(), *report), error.hint());
  }
}

void FillingProgress::print() {
  if (!group_.is_root()) return;
  const auto text = describe();
  if (log::on_terminal()) {
    log::progress(text);
  } else if (++lines_ <= 3 || since_line_.seconds() >= 10) {
    log::info("{}", text);
    since_line_ = Stopwatch();
  }
}

std::string FillingProgress::describe() const {
  const auto& total = ledger_.total();
  const double seconds = since_start_.seconds();
  return fmt::format("rows {} accepted {} rejected {} | encoded {} {:.1f} img/s | elapsed {}", total.rows(),
                     total.accepted, total.rejected_rows(), encoded_, encoded_ / std::max(seconds, 1e-9),
                     format_time(seconds));
}

// What DONE said of the cache holds until there is something new in it.
void FillingProgress::remove_done() const {
  if (!lease_.is_ours()) return;
  std::error_code ignored;
  std::filesystem::remove(run_dir_ / run_file::done, ignored);
}

void FillingProgress::write_ledger() const {
  if (lease_.is_ours()) write_file_atomically(run_dir_ / run_file::ledger, ledger_.report_json());
}

}  // namespace millrace
