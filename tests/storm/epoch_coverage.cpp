#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "epoch_coverage.h"
#include "millrace/dataset/data_config.h"
#include "millrace/loader/data_plan.h"
#include "millrace/loader/stripe.h"

namespace millrace::storm {
namespace {

using Ids = std::vector<std::string>;

DataPlan plan_of(const Site& site) {
  SourceConfig source;
  source.path = {site.archives().string()};
  if (site.drawn.data.archives == Archives::parquet) source.type = SourceConfig::Type::parquet;
  DataConfig data;
  data.stripes.value = site.drawn.stripes;
  return make_data_plan(source, data, site.drawn.batch);
}

// Good rows of a stripe in one of its epochs, sorted.
Ids assigned_ids(const EpochOrder& order, const Manifest& manifest, const Truth& truth, std::uint32_t stripe,
                 std::uint32_t epoch) {
  Ids ids;
  for (const auto index : order.splits_of(stripe, epoch)) {
    const Split& split = order.plan().splits[index];
    const auto& rows = truth.rows_of.at(manifest.archives[split.archive].name);
    for (std::size_t row = split.index; row < rows.size(); row += split.count)
      if (!rows[row].empty()) ids.push_back(rows[row]);
  }
  std::ranges::sort(ids);
  return ids;
}

// What each stripe gave, in order: every line of ids.jsonl has equally many of each, stripe by stripe.
std::vector<Ids> ids_of_stripes(const fs::path& run, std::size_t stripes) {
  std::vector<Ids> given(stripes);
  std::ifstream in(run / "ids.jsonl");
  for (std::string line; std::getline(in, line);) {
    const auto ids = nlohmann::json::parse(line).at("ids").get<Ids>();
    const auto each = ids.size() / stripes;
    for (std::size_t i = 0; i < ids.size(); ++i) given[i / each].push_back(ids[i]);
  }
  return given;
}

std::string check_stripe(const Ids& given, const EpochOrder& order, const Manifest& manifest, const Truth& truth,
                         std::uint32_t stripe) {
  std::uint32_t epoch = 0;
  for (std::size_t at = 0; at < given.size(); ++epoch) {
    const auto assigned = assigned_ids(order, manifest, truth, stripe, epoch);
    const auto count = std::min(assigned.size(), given.size() - at);
    Ids part(given.begin() + static_cast<std::ptrdiff_t>(at), given.begin() + static_cast<std::ptrdiff_t>(at + count));
    std::ranges::sort(part);
    Ids wrong;
    std::ranges::set_difference(part, assigned, std::back_inserter(wrong));
    if (!wrong.empty())
      return fmt::format("stripe {} gave {} once too often in its epoch {}, of {} rows", stripe, wrong[0], epoch,
                         assigned.size());
    at += count;
  }
  return {};
}

}  // namespace

Troubles check_epoch_coverage(const Site& site, const fs::path& run, const Truth& truth) {
  const auto plan = plan_of(site);
  const EpochOrder order(site.drawn.seed, plan.stripes);
  const auto given = ids_of_stripes(run, plan.stripes.stripes);
  Troubles troubles;
  for (std::uint32_t epoch = 0; epoch < 3; ++epoch) {
    Ids all;
    for (std::uint32_t stripe = 0; stripe < plan.stripes.stripes; ++stripe) {
      const auto ids = assigned_ids(order, plan.manifest, truth, stripe, epoch);
      all.insert(all.end(), ids.begin(), ids.end());
    }
    std::ranges::sort(all);
    if (!std::ranges::equal(all, truth.good))
      troubles.push_back(fmt::format("epoch {} does not order every row once", epoch));
  }
  for (std::uint32_t stripe = 0; stripe < plan.stripes.stripes && troubles.empty(); ++stripe)
    if (const auto wrong = check_stripe(given[stripe], order, plan.manifest, truth, stripe); !wrong.empty())
      troubles.push_back(wrong);
  return troubles;
}

}  // namespace millrace::storm
