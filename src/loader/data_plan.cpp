#include "millrace/loader/data_plan.h"

#include <algorithm>
#include <cmath>

#include "millrace/core/error.h"
#include "millrace/dataset/storage_retry.h"
#include "millrace/io/json.h"
#include "millrace/loader/sources.h"

namespace millrace {

using nlohmann::json;

namespace {

// No more stripes than these are planned.
std::uint64_t stripes_limit(int global_batch, const config::Auto<int>& wanted) {
  return static_cast<std::uint64_t>(wanted.value_or(std::min(global_batch, max_stripes)));
}

// Into how many splits an archive can be cut at most, so that none is empty.
std::uint64_t max_splits(const Archive& archive) {
  if (!archive.seekable) return 1;
  ensure(archive.rows.has_value(), "splits are planned before rows are counted");
  return std::max<std::uint64_t>(1, *archive.rows);
}

// Of all archives, when each is cut into `each`, or as many as it can be.
std::uint64_t count_splits(const Manifest& manifest, std::uint64_t each) {
  std::uint64_t splits = 0;
  for (const Archive& archive : manifest.archives) splits += std::min(each, max_splits(archive));
  return splits;
}

// The smallest number of splits per archive (fewer for one with fewer rows) that gives every stripe one; 0 when there
// is none.
std::uint64_t splits_per_archive(std::uint64_t stripes, const Manifest& manifest) {
  if (manifest.archives.size() >= stripes) return 1;
  for (std::uint64_t each = 2; each <= stripes; ++each)
    if (count_splits(manifest, each) >= stripes) return each;
  return 0;
}

// As far as a plan of `stripes` stripes, or of fewer, may have to know them. Where archives hold twice as many rows as
// they give splits, which is usual, a few headers of each tell as much as all: a thousand archives are soon looked at.
void count_rows_for_splits(Manifest& manifest, std::uint64_t stripes) {
  const auto archives = static_cast<std::uint64_t>(manifest.archives.size());
  if (archives >= stripes) return;
  const auto few = 2 * ((stripes + archives - 1) / archives);
  Manifest counted = manifest;
  count_rows(counted, few);
  if (count_splits(counted, few) < stripes) {
    counted = manifest;
    count_rows(counted, stripes);
  }
  manifest = std::move(counted);
}

StripePlan cut_into_splits(std::uint32_t stripes, std::uint64_t each, const Manifest& manifest) {
  StripePlan plan{stripes, {}};
  for (std::uint32_t i = 0; i < manifest.archives.size(); ++i) {
    const auto count = each == 1 ? 1u : static_cast<std::uint32_t>(std::min(each, max_splits(manifest.archives[i])));
    for (std::uint32_t index = 0; index < count; ++index) plan.splits.push_back({i, index, count});
  }
  return plan;
}

[[noreturn]] void fail_unfed(int stripes, const Manifest& manifest) {
  const bool streams =
      std::any_of(manifest.archives.begin(), manifest.archives.end(), [](const Archive& a) { return !a.seekable; });
  throw Error(Exit::usage,
              fmt::format("data.stripes = {}: {} archives cannot feed so many{}", stripes, manifest.archives.size(),
                          streams ? " (a pipe, an address or a compressed file feeds one stripe)" : " (too few rows)"),
              "set data.stripes=auto, or a smaller divisor of batch.global, or give more archives");
}

}  // namespace

int most_stripes(int global_batch) {
  int stripes = std::min(global_batch, max_stripes);
  while (global_batch % stripes != 0) --stripes;
  return stripes;
}

StripePlan plan_stripes(int global_batch, const config::Auto<int>& wanted, const Manifest& manifest) {
  ensure(global_batch >= 1 && !manifest.archives.empty(), "stripes need a batch and archives");
  if (wanted.value) {
    const int stripes = *wanted.value;
    if (stripes < 1 || global_batch % stripes) {
      throw Error(Exit::usage,
                  fmt::format("data.stripes = {} does not divide batch.global = {}", stripes, global_batch),
                  "every global batch takes as many samples from each stripe; auto chooses a divisor");
    }
    const std::uint64_t splits = splits_per_archive(stripes, manifest);
    if (splits == 0) fail_unfed(stripes, manifest);
    return cut_into_splits(stripes, splits, manifest);
  }
  for (int stripes = most_stripes(global_batch); stripes > 1; --stripes) {
    if (global_batch % stripes) continue;
    if (const std::uint64_t splits = splits_per_archive(stripes, manifest))
      return cut_into_splits(stripes, splits, manifest);
  }
  return cut_into_splits(1, 1, manifest);
}

StripePlan plan_shares(int ranks, const Manifest& manifest) {
  ensure(ranks >= 1 && !manifest.archives.empty(), "shares need ranks and archives");
  const auto most = static_cast<std::uint64_t>(ranks);
  const std::uint64_t archives = manifest.archives.size();
  const std::uint64_t shares = std::min(most, archives < most ? count_splits(manifest, most) : archives);
  return cut_into_splits(static_cast<std::uint32_t>(shares), splits_per_archive(shares, manifest), manifest);
}

double unseen_after_one_pass(const StripePlan& plan) {
  const auto splits = static_cast<double>(plan.splits.size()), stripes = static_cast<double>(plan.stripes);
  const auto more = plan.splits.size() % plan.stripes;  // stripes with one split more than the others
  return static_cast<double>(more) * std::max(0.0, std::ceil(splits / stripes) / splits - 1 / stripes);
}

// With the rows of the archives where as many stripes need them.
static Manifest list_and_count(const SourceConfig& source, const DataConfig& config, int global_batch,
                               const config::Auto<int>& stripes) {
  Manifest manifest;
  StorageRetry(StorageRetry::Seconds(config.retry_for.count)).run([&] {
    manifest = make_manifest(source, config.allow_pipes);
    count_rows_for_splits(manifest, stripes_limit(global_batch, stripes));
  });
  return manifest;
}

DataPlan make_data_plan(const SourceConfig& source, const DataConfig& config, int global_batch) {
  DataPlan plan{list_and_count(source, config, global_batch, config.stripes), {}};
  plan.stripes = plan_stripes(global_batch, config.stripes, plan.manifest);
  return plan;
}

DataPlan make_shares(const SourceConfig& source, const DataConfig& config, int ranks) {
  DataPlan plan{list_and_count(source, config, ranks, {ranks}), {}};
  plan.stripes = plan_shares(ranks, plan.manifest);
  return plan;
}

// CBOR, because paths are bytes and not always UTF-8.
std::string to_bytes(const DataPlan& plan) {
  json archives = json::array(), splits = json::array();
  for (const Archive& a : plan.manifest.archives) {
    archives.push_back({a.path, a.name, a.bytes, a.seekable, optional_to_json(a.rows), optional_to_json(a.limit)});
  }
  for (const Split& split : plan.stripes.splits) splits.push_back({split.archive, split.index, split.count});
  std::string bytes;
  json::to_cbor({{"archives", archives}, {"stripes", plan.stripes.stripes}, {"splits", splits}}, bytes);
  return bytes;
}

DataPlan data_plan_from_bytes(std::string_view bytes) try {
  const json read = json::from_cbor(bytes);
  DataPlan plan;
  for (const json& a : read.at("archives")) {
    plan.manifest.archives.push_back(
        {a.at(0), a.at(1), a.at(2), a.at(3), optional_from_json(a.at(4)), optional_from_json(a.at(5))});
  }
  plan.stripes.stripes = read.at("stripes");
  for (const json& split : read.at("splits")) plan.stripes.splits.push_back({split.at(0), split.at(1), split.at(2)});
  return plan;
} catch (const json::exception& error) {
  fail(Exit::io, "a plan of the data cannot be read: {}", error.what());
}

}  // namespace millrace
