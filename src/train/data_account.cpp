#include "data_account.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "millrace/comm/agree.h"
#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/log.h"
#include "millrace/core/run_files.h"
#include "millrace/loader/bad_share.h"

namespace millrace {

static std::int64_t whole_passes(const StripeCursors& cursors) {
  const auto last = std::ranges::min_element(cursors, {}, [](const auto& entry) { return entry.second.epoch; });
  return last == cursors.end() ? 0 : last->second.epoch;
}

DataAccount::DataAccount(const TrainerContext& context, const std::string& state, const StripeCursors& cursors)
    : context_(context), judged_passes_(whole_passes(cursors)) {
  if (!context_.is_root()) return;
  ledger_.emplace(context_.data);
  if (!state.empty()) ledger_->load_state(state);
}

void DataAccount::add(const std::vector<SampleRef>& refs, const LedgerDelta& delta) {
  for (const auto& ref : refs) epochs_[ref.stripe] = ref.epoch;
  delta_.append(delta);
}

std::int64_t DataAccount::passes() const {
  const auto own = std::ranges::min_element(epochs_, {}, [](const auto& entry) { return entry.second; });
  return context_.trainers.smallest(own == epochs_.end() ? 0 : own->second);
}

void DataAccount::collect() {
  const auto parts = context_.trainers.gather_strings(std::exchange(delta_, {}).to_bytes());
  on_root(context_.trainers, [&] {
    for (const auto& part : parts)
      if (!part.empty()) ledger_->merge(LedgerDelta::from_bytes(part));
  });
}

void DataAccount::merge() {
  const auto passes_before = std::exchange(judged_passes_, passes());
  collect();
  on_root(context_.trainers, [&] {
    try {
      check_bad_share(*ledger_, context_.data, context_.max_bad_share, judged_passes_ > passes_before);
    } catch (const Error&) {
      write_report();
      throw;
    }
  });
}

void DataAccount::tell_rows(Metrics& metrics) const {
  const RowCounts& counts = ledger_->total();
  metrics.rows = counts.rows();
  for (int reason = 0; reason < reason_count; ++reason)
    if (const auto rows = counts.rejected[reason])
      metrics.rejected[to_string(static_cast<RejectReason>(reason))] = rows;
}

void DataAccount::write_report() const {
  if (context_.lease && !context_.lease->is_ours()) return;
  try {
    write_file_atomically(std::filesystem::path(context_.config.run_dir) / run_file::ledger, ledger_->report_json());
  } catch (const Error& failed) {
    log::warning("ledger.json stays as it was: {}", failed.what());
  }
}

}  // namespace millrace
