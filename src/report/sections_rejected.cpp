#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <set>

#include "json_fields.h"
#include "sections.h"

namespace millrace {
namespace {

std::int64_t count_in(const nlohmann::json& json, const std::string& key) {
  return integer_in(json, key).value_or(0);
}

nlohmann::json rejected_of(const RunRecord& run) {
  return run.ledger.is_object() ? run.ledger.value("rejected", nlohmann::json::object()) : nlohmann::json::object();
}

}  // namespace

Section rejected_section(Runs runs) {
  RunTable counts(runs), table(runs);
  for (const char* key : {"rows", "accepted"})
    counts.add(key, [key](const RunRecord& run) {
      return run.ledger.is_object() ? fmt::format("{}", count_in(run.ledger, key)) : std::string();
    });
  if (counts.is_empty()) return {"Rejected rows", {Paragraph{"There is no ledger yet."}}};
  std::set<std::string> reasons;
  for (const auto& run : runs) {
    const auto rejected = rejected_of(run);
    if (!rejected.is_object()) continue;
    for (const auto& [reason, count] : rejected.items()) reasons.insert(reason);
  }
  for (const auto& reason : reasons)
    table.add(reason, [&](const RunRecord& run) {
      if (!run.ledger.is_object()) return std::string();
      const auto count = count_in(rejected_of(run), reason);
      const auto rows = std::max<std::int64_t>(1, count_in(run.ledger, "rows"));
      return fmt::format("{} ({})", count, percent(static_cast<double>(count) / static_cast<double>(rows)));
    });
  Section section{"Rejected rows", {counts.take()}};
  if (reasons.empty()) {
    section.blocks.emplace_back(Paragraph{"None so far."});
  } else {
    auto by_reason = table.take();
    by_reason.names_are_code = true;
    section.blocks.emplace_back(std::move(by_reason));
  }
  return section;
}

}  // namespace millrace
