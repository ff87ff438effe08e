#include <set>

#include "millrace/dataset/retrying_source.h"
#include "millrace/latents/latent_table.h"
#include "millrace/loader/sources.h"
#include "preflight/checks.h"

namespace millrace::preflight {
namespace {

using nlohmann::json;

constexpr double read_seconds = 45;

std::unique_ptr<SampleSource> open_source(const TrainPlan& plan) {
  const auto& c = plan.config;
  if (plan.input.encoding.reads_tables())
    return make_latent_table_source(c.data.train, plan.input.data.manifest,
                                    latent_table_options(c, plan.pipeline, plan.input.encoding.shape));
  return make_source(c.data.train, plan.input.data.manifest, c.transform.resolution, /*index=*/"never");
}

std::size_t bytes_of(const RawRow& row) {
  if (const auto* sample = std::get_if<RawSample>(&row))
    return sample->image.size() + sample->caption.size() + sample->json.size();
  if (const auto* encoded = std::get_if<EncodedSample>(&row)) return encoded->encoding.bytes();
  return 0;
}

// The beginning of an archive, read as the run will.
json read_beginning(const TrainPlan& plan, std::size_t archive) {
  constexpr std::size_t most_rows = 64, most_bytes = 16 << 20;
  constexpr double most_seconds = 3;
  StorageRetry retry(StorageRetry::Seconds(plan.config.data.retry_for.count));
  const auto source = open_source(plan);
  const RetryingSource patient(*source, retry);
  const Stopwatch watch;
  const auto reader = patient.open({.archive = static_cast<std::uint32_t>(archive)}, 0);
  std::size_t rows = 0, bytes = 0;
  std::vector<std::string> broken;  // a run would count it and go on
  while (rows < most_rows && bytes < most_bytes && watch.seconds() < most_seconds) {
    const auto row = reader->next();
    if (!row) break;
    const auto* rejected = std::get_if<Rejected>(&*row);
    if (rejected && rejected->reason == RejectReason::archive_error)
      broken.push_back(fmt::format("{}: {}", plan.input.data.manifest.archives[archive].path, rejected->detail));
    ++rows;
    bytes += bytes_of(*row);
  }
  return {{"rows", rows}, {"bytes", bytes}, {"seconds", watch.seconds()}, {"broken", broken}};
}

// The first archive, which others can compare with, and one of its own. That the latter fails is among the facts.
json read_two(const TrainPlan& plan, int rank) {
  const auto producer = static_cast<std::size_t>(position_in(plan.roles.producers, rank));
  const auto own = (2 * producer + 1) * plan.input.data.manifest.archives.size() / (2 * plan.roles.producers.size());
  json beginnings = json::array({read_beginning(plan, 0)});
  std::optional<Error> error;
  try {
    if (own != 0) beginnings.push_back(read_beginning(plan, own));
  } catch (const Error& failure) {
    error = failure;
  }
  return {{"beginnings", beginnings}, {"own", Answer{own, error}}};
}

// An archive that a rank could not read, though it could read the first one, and who tries it as well: the next such
// rank, on another host where there is one.
struct Doubt {
  int of = 0, helper = 0;
  Answer archive;
};
std::vector<Doubt> find_doubts(const Checkup& checkup, const Answers& read) {
  const auto own = facts_of<Answer>(read, "own");
  std::vector<std::string> hosts;
  for (const auto& [rank, archive] : own) hosts.push_back(checkup.hosts()[rank]);
  const auto ring = ring_over_hosts(hosts);
  std::vector<Doubt> doubts;
  for (std::size_t i = 0; i < ring.size(); ++i)
    if (const auto& [rank, archive] = own[ring[i]]; archive.error)
      doubts.push_back({rank, own[ring[(i + 1) % ring.size()]].rank, archive});
  return doubts;
}

Row judge_data(const Checkup& checkup, const Answers& read, const std::vector<Doubt>& doubts, const Answers& again) {
  std::size_t all_rows = 0, all_bytes = 0;
  std::set<std::string> broken;
  Facts<double> rates;
  for (const auto& [rank, beginnings] : facts_of<json>(read, "beginnings")) {
    double bytes = 0, seconds = 1e-6;
    for (const auto& one : beginnings) {
      all_rows += one.at("rows").get<std::size_t>();
      bytes += one.at("bytes").get<double>();
      seconds += one.at("seconds").get<double>();
      for (const auto& text : one.at("broken")) broken.insert(text.get<std::string>());
    }
    all_bytes += static_cast<std::size_t>(bytes);
    rates.push_back({rank, bytes / seconds});
  }
  const auto slowest = least(rates);
  Row row{.detail = fmt::format("{} rows, {}, by {} {}; slowest {} ({})", all_rows, format_bytes(all_bytes),
                                rates.size(), rates.size() == 1 ? "producer" : "producers",
                                describe_rate(slowest.value), checkup.name(slowest.rank))};
  for (const auto& text : broken) row.detail += "\nbroken, a run would count it: " + text;
  for (const auto& [rank, what] : failed_alone(read))
    row.suspect(rank, "{} ({} can read it)", what, checkup.name(rates[0].rank));
  for (const auto& [of, helper, archive] : doubts) {
    if (helper == of || again[helper].error) throw *archive.error;  // nobody can
    row.suspect(of, "{} ({} can read it)", archive.error->what(), checkup.name(helper));
  }
  return row;
}

}  // namespace

void check_data(Checkup& checkup, const TrainPlan& plan) {
  const int rank = checkup.rank();
  const auto read = checkup.ask("data", read_seconds,
                                [&]() -> json { return plan.roles.produces(rank) ? read_two(plan, rank) : json(); });
  const auto doubts = find_doubts(checkup, read);
  const auto again = checkup.ask("data", read_seconds, [&] {
    for (const auto& [of, helper, archive] : doubts)
      if (helper == rank && of != rank) read_beginning(plan, archive.facts.get<std::size_t>());
    return json::object();
  });
  checkup.conclude([&] { return judge_data(checkup, read, doubts, again); });
}

}  // namespace millrace::preflight
