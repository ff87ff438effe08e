#include "train/shuffle_plan.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>
#include <span>
#include <utility>

#include "millrace/comm/agree.h"
#include "millrace/core/error.h"
#include "millrace/core/node_memory.h"
#include "millrace/core/units.h"
#include "millrace/dataset/filter.h"
#include "millrace/dataset/table.h"
#include "millrace/io/archive_name.h"
#include "millrace/io/input_file.h"
#include "millrace/io/net/urls.h"
#include "millrace/latents/encoding_shape.h"
#include "millrace/loader/data_plan.h"
#include "millrace/loader/row_counts.h"
#include "millrace/loader/sources.h"
#include "millrace/loader/transform_sample.h"

namespace millrace {
namespace {

// A photo of 512 pixels with its metadata, rather more than less.
constexpr std::uint64_t assumed_row_bytes = 100 << 10;

struct FirstRows {
  RowCounts counts;
  std::uint64_t bytes = 0;      // of the samples among them
  std::string why_bad;          // the first bad one is
  double bytes_in_archive = 0;  // of one row; 0 = unknown
};

// A row that the filters drop is not bad.
Rejected judged(Rejected row, const Filter& filter) {
  TransformPipeline filters;
  filters.filter = &filter;
  judge_rejected(row, filters);
  return row;
}

FirstRows read_first_rows(SplitReader& reader, const Filter& filter) {
  constexpr int wanted = 64;
  FirstRows first;
  for (int i = 0; i < wanted; ++i) {
    auto row = reader.next();
    if (!row) break;
    const SampleRef& ref = std::visit([](const auto& content) -> const SampleRef& { return content.ref; }, *row);
    if (i > 0 && ref.offset) first.bytes_in_archive = static_cast<double>(*ref.offset) / i;
    if (const auto* sample = std::get_if<RawSample>(&*row)) {
      first.counts.add(std::nullopt);
      first.bytes += sample->image.size() + sample->image_uri.size() + sample->caption.size() + sample->json.size();
    } else if (auto* rejected = std::get_if<Rejected>(&*row)) {
      const Rejected bad = judged(std::move(*rejected), filter);
      first.counts.add(bad.reason);
      if (first.why_bad.empty()) first.why_bad = bad.detail;
    }
  }
  return first;
}

// Of the beginning of a list; 0 where it is compressed.
double line_bytes(const std::string& file) {
  constexpr std::size_t looked_at = 1 << 20;
  if (file.ends_with(".gz")) return 0;
  std::string text(looked_at, '\0');
  text.resize(InputFile(file).read_at(0, std::as_writable_bytes(std::span(text))));
  const auto lines = std::ranges::count(text, '\n');
  return lines == 0 ? 0 : static_cast<double>(text.size()) / static_cast<double>(lines);
}

// Nothing for what is no file: a stream is not begun for this.
std::optional<FirstRows> look_at_first_rows(const ProducerConfig& config, const Manifest& manifest) {
  const SourceConfig& data = config.data.train;
  const Archive& archive = manifest.archives.at(0);
  const std::string file = local_path(archive.path);
  std::error_code error;
  if (data.type != SourceConfig::Type::synthetic && !std::filesystem::is_regular_file(file, error))
    return std::nullopt;  // a stream would lose the rows that are looked at
  try {
    const auto source = make_source(data, manifest, config.transform.resolution, /*index=*/"never");
    FirstRows first = read_first_rows(*source->open({0, 0, 1}, 0), Filter(data.filters, data.section));
    if (!is_table(archive.path)) return first;
    const bool is_parquet = is_kind(archive.path, ArchiveKind::parquet);
    const auto rows = is_parquet ? count_table_rows(file, std::numeric_limits<std::uint64_t>::max()) : 0;
    if (rows > 0) first.bytes_in_archive = static_cast<double>(archive.bytes) / static_cast<double>(rows);
    if (!is_parquet) first.bytes_in_archive = line_bytes(file);
    return first;
  } catch (const Error&) {
    return std::nullopt;  // whoever reads the data will say what is wrong with them
  }
}

// About, as if all were of this size.
std::uint64_t count_all_rows(const Manifest& manifest, const std::optional<std::int64_t>& limit, double row_bytes) {
  if (row_bytes <= 0) return 0;
  double bytes = 0;
  for (const Archive& archive : manifest.archives) bytes += static_cast<double>(archive.bytes);
  const auto rows = static_cast<std::uint64_t>(bytes / row_bytes);
  return limit ? std::min(rows, static_cast<std::uint64_t>(*limit)) : rows;
}

std::string complaint_about_first_rows(const FirstRows& first, const Archive& archive, const std::string& section) {
  if (first.counts.accepted > 0 || first.counts.bad_rows() == 0) return "";
  const auto advice = advice_on_columns(first.counts, section);
  return fmt::format("none of the first {} rows of {} can be used: {} ({}){}{}", first.counts.rows(), archive.path,
                     main_reasons(first.counts), first.why_bad, advice.empty() ? "" : "; ", advice);
}

}  // namespace

RowSurvey survey_rows(const ProducerConfig& config, const Manifest& manifest, const EncodingPlan& encoding) {
  const std::uint64_t encoded = encoding_bytes(encoding.shape);
  if (!encoding.encodes) return {encoded, true};
  RowSurvey survey{.bytes = assumed_row_bytes};
  const SourceConfig& data = config.data.train;
  if (const auto first = look_at_first_rows(config, manifest)) {
    survey.is_measured = first->counts.accepted > 0;
    if (survey.is_measured) survey.bytes = first->bytes / first->counts.accepted;
    if (data.filters.empty()) survey.count = count_all_rows(manifest, data.limit, first->bytes_in_archive);
    survey.complaint = complaint_about_first_rows(*first, manifest.archives.front(), data.section);
  }
  if (encoding.cache) survey.bytes = std::max(survey.bytes, encoded);
  return survey;
}

ShufflePlan plan_shuffle(const Session& session, const ProducerConfig& config, const DataPlan& data,
                         const EncodingPlan& encoding, const Roles& roles, const Routing& routing) {
  ShufflePlan plan;
  plan.block = static_cast<std::uint32_t>(config.data.shuffle_block);
  on_root(session.world.group(), [&] { plan.rows = survey_rows(config, data.manifest, encoding); });
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
                     format_bytes(plan.bytes_of(stripes)), stripes, format_bytes(plan.rows.bytes),
                     plan.rows.is_measured ? "" : ", a guess");
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

std::optional<std::string> complaint_about_mixing(const ShufflePlan& plan, const DataPlan& data) {
  constexpr std::uint64_t few = 4, many = 4;
  const std::uint64_t archives = data.manifest.archives.size(), stripes = data.stripes.stripes;
  const std::uint64_t window = stripes * plan.block;
  if (plan.block == 1 || few * archives > stripes || plan.rows.count < many * window) return std::nullopt;
  return fmt::format(
      "{} archive{} of about {} rows feed{} {} stripes, which mix {} of them at a time: where neighbours are alike, "
      "shuffle the rows beforehand",
      archives, archives == 1 ? "" : "s", format_count(static_cast<double>(plan.rows.count)), archives == 1 ? "s" : "",
      stripes, window);
}

}  // namespace millrace
