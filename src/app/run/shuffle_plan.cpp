#include "run/shuffle_plan.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include "millrace/comm/agree.h"
#include "millrace/core/error.h"
#include "millrace/core/node_memory.h"
#include "millrace/io/net/urls.h"
#include "millrace/loader/data_plan.h"
#include "millrace/loader/sources.h"

namespace millrace {
namespace {

// A photo of 512 pixels with its metadata, rather more than less.
constexpr std::uint64_t assumed_row_bytes = 100 << 10;

// The mean of the first rows. Nothing for what is no file: a stream is not begun for this.
std::optional<std::uint64_t> measure_first_rows(const ProducerConfig& config, const Manifest& manifest) {
  constexpr int wanted = 64;
  const SourceConfig& data = config.data.train;
  std::error_code error;
  if (data.type != SourceConfig::Type::synthetic &&
      !std::filesystem::is_regular_file(local_path(manifest.archives.at(0).path), error))
    return std::nullopt;  // a stream would lose the rows that are looked at
  std::uint64_t bytes = 0, samples = 0;
  try {
    const auto source = make_source(data, manifest, config.transform.resolution, /*index=*/"never");
    const auto rows = source->open({0, 0, 1}, 0);
    for (int i = 0; i < wanted; ++i) {
      const auto row = rows->next();
      if (!row) break;
      const auto* sample = std::get_if<RawSample>(&*row);
      if (!sample) continue;
      bytes += sample->image.size() + sample->image_uri.size() + sample->caption.size() + sample->json.size();
      ++samples;
    }
  } catch (const Error&) {
    return std::nullopt;  // whoever reads the data will say what is wrong with them
  }
  if (samples == 0) return std::nullopt;
  return bytes / samples;
}

}  // namespace

RowSize measure_row(const ProducerConfig& config, const Manifest& manifest, const EncodingPlan& encoding) {
  const std::uint64_t encoded = encoding_bytes(encoding.shape);
  if (!encoding.encodes) return {encoded, true};
  const auto measured = measure_first_rows(config, manifest);
  const std::uint64_t bytes = measured.value_or(assumed_row_bytes);
  return {encoding.cache ? std::max(bytes, encoded) : bytes, measured.has_value()};
}

ShufflePlan plan_shuffle(const Session& session, const ProducerConfig& config, const DataPlan& data,
                         const EncodingPlan& encoding, const Roles& roles, const Routing& routing) {
  ShufflePlan plan;
  plan.block = static_cast<std::uint32_t>(config.data.shuffle_block);
  on_root(session.world.group(), [&] { plan.row = measure_row(config, data.manifest, encoding); });
  plan.hosts = session.world.hosts();
  plan.stripes_of_rank.assign(plan.hosts.size(), 0);
  for (std::size_t i = 0; i < roles.producers.size(); ++i)
    plan.stripes_of_rank[roles.producers[i]] = routing.stripes_of_producer(static_cast<int>(i)).size();
  for (const auto& bytes : session.world.group().all_gather_strings(std::to_string(node_memory_bytes())))
    plan.memory_of_rank.push_back(std::stoull(bytes));
  return plan;
}

std::string describe(const ShufflePlan& plan) {
  if (plan.block == 1) return "not at all: data.shuffle_block = 1";
  const std::uint64_t stripes = std::ranges::max(plan.stripes_of_rank);
  return fmt::format("blocks of {0} rows, about {1} on each producer ({2} stripes x {0} rows of {3}{4})", plan.block,
                     format_bytes(plan.bytes_of(stripes)), stripes, format_bytes(plan.row.bytes),
                     plan.row.is_measured ? "" : ", a guess");
}

std::vector<std::string> memory_warnings(const ShufflePlan& plan) {
  struct Node {
    std::uint64_t bytes = 0, memory = 0;
  };
  std::map<std::string, Node> nodes;
  for (std::size_t rank = 0; rank < plan.hosts.size(); ++rank) {
    Node& node = nodes[plan.hosts[rank]];
    node.bytes += plan.bytes_of(plan.stripes_of_rank[rank]);
    node.memory = std::max(node.memory, plan.memory_of_rank[rank]);
  }
  std::vector<std::string> warnings;
  for (const auto& [host, node] : nodes) {
    if (node.bytes <= node.memory / 4) continue;
    warnings.push_back(
        fmt::format("data.shuffle_block = {}: rows that wait to be shuffled take about {} on {}, more than a quarter "
                    "of its {}; smaller blocks take less",
                    plan.block, format_bytes(node.bytes), host, format_bytes(node.memory)));
  }
  return warnings;
}

}  // namespace millrace
