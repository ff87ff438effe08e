#include <fmt/ranges.h>

#include <chrono>
#include <set>
#include <sstream>
#include <thread>

#include "millrace/comm/agree.h"
#include "millrace/core/files.h"
#include "millrace/dataset/retrying_source.h"
#include "millrace/io/json.h"
#include "millrace/latents/latent_table.h"
#include "millrace/loader/sources.h"
#include "millrace/nn/device.h"
#include "preflight/checks.h"
#include "run/run_folder.h"
#include "run/validation_set.h"

namespace millrace::preflight {
namespace {

using nlohmann::json;

constexpr double file_seconds = 45;
constexpr double plan_seconds = 120;    // rank 0 may have to count rows
constexpr double visible_seconds = 15;  // network file systems remember for a while that a name was not there

// ---- model folder -------------------------------------------------------------------------------------------------

// Names and sizes of all files of the components, and what the configuration has in their place.
json facts_of_folder(const TrainConfig& config, const PipelineFolder& pipeline) {
  std::set<std::string> lines;
  std::uint64_t bytes = 0;
  const auto add = [&](const std::string& name, std::uint64_t size) {
    lines.insert(fmt::format("{}, {} bytes", name, size));
    bytes += size;
  };
  for (const auto& [name, path] : pipeline.components())
    for (const auto& entry : fs::recursive_directory_iterator(path))
      if (entry.is_regular_file())
        add(fmt::format("{}/{}", name, fs::relative(entry.path(), path).string()), entry.file_size());
  if (const auto& file = config.model.unet.config) add("model.unet.config " + *file, fs::file_size(*file));
  return {{"listing", fmt::format("{}\n", fmt::join(lines, "\n"))}, {"files", lines.size()}, {"bytes", bytes}};
}

// The lines that only one of two listings has.
std::string difference(const std::string& own, const std::string& usual) {
  std::vector<std::string> texts;
  const auto add_missing = [&](const std::string& from, const std::string& in, const char* verb) {
    std::istringstream lines(from);
    for (std::string line; std::getline(lines, line);)
      if (("\n" + in).find("\n" + line + "\n") == in.npos) texts.push_back(verb + line);
  };
  add_missing(usual, own, "lacks ");
  add_missing(own, usual, "has ");
  if (texts.size() > 3) texts.resize(3), texts.push_back("...");
  return fmt::format("{}", fmt::join(texts, "; "));
}

json read_unet_config(const TrainConfig& config, const PipelineFolder& pipeline) {
  if (!config.model.unet.config) return pipeline.config("unet");
  try {
    return read_json_object(*config.model.unet.config);
  } catch (const Error& error) {
    throw Error(error.exit(), fmt::format("model.unet.config: {}", error.what()), error.hint());
  }
}

// ---- plan ---------------------------------------------------------------------------------------------------------

void check_channels(const json& unet_config, const EncodingShape& shape) {
  const auto unet = UNet2DConditionConfig::from_json(unet_config);
  if (2 * unet.in_channels != shape.moments[0])
    fail(Exit::usage, "model.pipeline: the U-Net takes {} channels, the VAE makes {}", unet.in_channels,
         shape.moments[0] / 2);
  for (const auto width : unet.cross_attention_dim)
    if (width != shape.text[1])
      fail(Exit::usage, "model.pipeline: the U-Net attends to embeddings of width {}, the text encoder makes {}", width,
           shape.text[1]);
}

std::string describe_plan(const Plan& plan) {
  return fmt::format("{}; {} archives, {} stripes in {} splits",
                     plan.roles.all_in_one
                         ? "every rank trains and produces"
                         : fmt::format("trainers {}, producers {}", fmt::join(plan.roles.trainers, " "),
                                       fmt::join(plan.roles.producers, " ")),
                     plan.data.manifest.archives.size(), plan.data.stripes.stripes, plan.data.stripes.splits.size());
}

// ---- run folder ---------------------------------------------------------------------------------------------------

std::string content_of(const fs::path& file) {
  auto text = (file.parent_path().filename() / file.filename()).string();
  text.resize(64 << 10, '.');
  return text;
}

// What another rank has written, as soon as it is there.
void read_back(const fs::path& file, const std::string& writer) {
  const Stopwatch watch;
  std::error_code error;
  while (!fs::exists(file, error)) {
    if (watch.seconds() > visible_seconds)
      fail(Exit::io, "it does not see {}, which {} wrote {:.0f} s ago: is run.dir the same folder there?",
           file.string(), writer, visible_seconds);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  if (read_file(file) != content_of(file))
    fail(Exit::io, "it reads other bytes in {} than {} wrote", file.string(), writer);
}

// "12 ms (slowest: rank 2 on n1)".
std::string describe_slowest(const Answers& answers, const Checkup& checkup) {
  const auto slowest = facts_of<double>(answers, "seconds").most();
  return fmt::format("{} (slowest: {})", describe_seconds(slowest.value), checkup.name(slowest.rank));
}

// ---- data ---------------------------------------------------------------------------------------------------------

std::unique_ptr<SampleSource> open_source(const TrainConfig& config, const Plan& plan) {
  const auto& source = config.data.train;
  if (source.type == SourceConfig::Type::latents && is_latent_parquet(source)) {
    const auto vae = AutoencoderKLConfig::from_json(plan.pipeline.config("vae"));
    return make_latent_table_source(
        source, plan.data.manifest,
        {plan.encoding.shape, config.transform.resolution, vae.scaling_factor, vae.shift_factor.value_or(0)});
  }
  return make_source(source, plan.data.manifest, config.transform.resolution,
                     /*index=*/"never");
}

std::size_t bytes_of(const RawRow& row) {
  if (const auto* sample = std::get_if<RawSample>(&row))
    return sample->image.size() + sample->caption.size() + sample->json.size();
  if (const auto* encoded = std::get_if<EncodedSample>(&row))
    return 2 * (encoded->encoding.moments.size() + encoded->encoding.text.size());
  return 0;
}

// Reads the beginnings of archives as the run will.
class Beginnings {
 public:
  Beginnings(const TrainConfig& config, const Plan& plan)
      : plan_(plan),
        retry_(StorageRetry::Seconds(config.data.retry_for.count)),
        source_(open_source(config, plan)),
        patient_(*source_, retry_) {}

  void read(std::size_t archive) {
    constexpr std::size_t most_rows = 64, most_bytes = 16 << 20;
    constexpr double most_seconds = 3;
    const Stopwatch watch;
    const auto reader = patient_.open({.archive = static_cast<std::uint32_t>(archive)}, 0);
    std::size_t rows = 0, bytes = 0;
    while (rows < most_rows && bytes < most_bytes && watch.seconds() < most_seconds) {
      const auto row = reader->next();
      if (!row) break;
      const auto* rejected = std::get_if<Rejected>(&*row);
      if (rejected && rejected->reason == RejectReason::archive_error)
        broken_.push_back(fmt::format("{}: {}", plan_.data.manifest.archives[archive].path, rejected->detail));
      ++rows;
      bytes += bytes_of(*row);
    }
    rows_ += rows;
    bytes_ += bytes;
    seconds_ += watch.seconds();
  }

  json facts() const {
    return {{"rows", rows_},
            {"bytes", bytes_},
            {"rate", static_cast<double>(bytes_) / std::max(1e-6, seconds_)},
            {"broken", broken_}};
  }

 private:
  const Plan& plan_;
  StorageRetry retry_;
  const std::unique_ptr<SampleSource> source_;
  const RetryingSource patient_;
  std::size_t rows_ = 0, bytes_ = 0;
  double seconds_ = 0;
  std::vector<std::string> broken_;  // what is wrong inside archives; a run would count it and go on
};

// The first archive, which others can compare with, and one of its own. That the latter fails is among the facts.
json read_two(const TrainConfig& config, const Plan& plan, int rank) {
  Beginnings beginnings(config, plan);
  beginnings.read(0);
  const auto producer = static_cast<std::size_t>(position_in(plan.roles.producers, rank));
  const auto own = (2 * producer + 1) * plan.data.manifest.archives.size() / (2 * plan.roles.producers.size());
  std::optional<Error> error;
  try {
    if (own != 0) beginnings.read(own);
  } catch (const Error& failure) {
    error = failure;
  }
  auto facts = beginnings.facts();
  facts["failed"] = error ? json{{"archive", own}, {"error", to_json(error)}} : json();
  return facts;
}

// Who tries an archive that another rank could not read, though it could read the first one: the next such rank, on
// another host where there is one.
json find_helpers(const Checkup& checkup, const Answers& read) {
  std::vector<int> could;
  std::vector<std::string> hosts;
  for (std::size_t rank = 0; rank < read.size(); ++rank) {
    if (!read[rank].facts.contains("failed")) continue;
    could.push_back(static_cast<int>(rank));
    hosts.push_back(checkup.hosts()[rank]);
  }
  const auto ring = ring_over_hosts(hosts);
  json tries = json::array();
  for (std::size_t i = 0; i < ring.size(); ++i) {
    const int rank = could[ring[i]];
    if (const auto& failed = read[rank].facts.at("failed"); !failed.is_null())
      tries.push_back({{"of", rank}, {"helper", could[ring[(i + 1) % ring.size()]]}, {"failed", failed}});
  }
  return tries;
}

Row judge_data(const Checkup& checkup, const Answers& read, const json& tries, const Answers& again) {
  std::size_t rows = 0, bytes = 0;
  std::set<std::string> broken;
  for (const auto n : facts_of<std::size_t>(read, "rows").values) rows += n;
  for (const auto n : facts_of<std::size_t>(read, "bytes").values) bytes += n;
  for (const auto& texts : facts_of<std::vector<std::string>>(read, "broken").values)
    broken.insert(texts.begin(), texts.end());
  const auto rates = facts_of<double>(read, "rate");
  const auto slowest = rates.least();
  Row row{.detail = fmt::format("{} rows, {}, by {} {}; slowest {} ({})", rows, format_bytes(bytes), rates.ranks.size(),
                                rates.ranks.size() == 1 ? "producer" : "producers", describe_rate(slowest.value),
                                checkup.name(slowest.rank))};
  for (const auto& text : broken) row.detail += "\nbroken, a run would count it: " + text;
  for (const auto& [rank, what] : failed_alone(read))
    row.suspects.push_back({rank, fmt::format("{} ({} can read it)", what, checkup.name(rates.ranks[0]))});
  for (const auto& one : tries) {
    const int of = one.at("of"), helper = one.at("helper");
    const auto error = *error_from(one.at("failed").at("error"));
    if (helper == of || again[helper].error) throw error;  // nobody can
    row.suspects.push_back({of, fmt::format("{} ({} can read it)", error.what(), checkup.name(helper))});
  }
  return row;
}

}  // namespace

void check_model_folder(Checkup& checkup, const TrainConfig& config, Plan& plan) {
  const auto work = [&] {
    plan.pipeline = PipelineFolder::open(config.model.pipeline.value);
    plan.unet = read_unet_config(config, plan.pipeline);
    return facts_of_folder(config, plan.pipeline);
  };
  checkup.check("model folder", file_seconds, work, [&](const auto& answers) {
    const auto listings = facts_of<std::string>(answers, "listing");
    Row row{.detail = "", .ends = true};
    for (const auto& odd : odd_ones(listings.values))
      row.suspects.push_back(
          {listings.ranks[odd.position], fmt::format("{}: it {}", config.model.pipeline.value,
                                                     difference(listings.values[odd.position], odd.usual))});
    if (row.suspects.empty())
      row.detail = fmt::format("{}: {} files, {}, the same names and sizes everywhere", config.model.pipeline.value,
                               facts_of<int>(answers, "files").values[0],
                               format_bytes(facts_of<std::uint64_t>(answers, "bytes").values[0]));
    return row;
  });
}

void check_plan(Checkup& checkup, const TrainConfig& config, Plan& plan) {
  const auto& session = plan.session;
  const auto& world = session.world.group();
  checkup.demand("plan", plan_seconds, [&] {
    plan.data = broadcast_data_plan(world, config.data.train, config.data, config.batch.global);
    plan.encoding = broadcast_encoding_plan(world, config, plan.pipeline, plan.data.manifest,
                                            parse_dtype(config.encode.dtype, session.device));
    on_all(world, [&] {
      check_channels(plan.unet, plan.encoding.shape);
      plan_routing(plan.roles, static_cast<int>(plan.data.stripes.stripes), config.batch.global, config.batch.micro);
    });
    plan_validation(session, config, plan.pipeline, plan.roles, plan.encoding.shape);
    plan.of_role = world.split(plan.trains(world.rank()) ? 0 : 1, world.rank());
    return true;
  });
  checkup.conclude("plan", [&] { return Row{.detail = describe_plan(plan)}; });
}

void check_run_folder(Checkup& checkup, const fs::path& run_dir, ScratchFolder& scratch) {
  std::string folder;
  checkup.ask("run folder", file_seconds, [&]() -> json {
    if (!checkup.is_root()) return nullptr;
    folder = scratch.make(run_dir).filename().string();
    return true;
  });
  folder = checkup.broadcast(folder).get<std::string>();
  const auto file_of = [&](int rank) { return run_dir / folder / fmt::format("rank-{:05d}", rank); };
  const auto timed = [](const auto& work) {
    return [&work]() -> json {
      const Stopwatch watch;
      work();
      return {{"seconds", watch.seconds()}};
    };
  };
  const auto write = [&] { write_file_atomically(file_of(checkup.rank()), content_of(file_of(checkup.rank()))); };
  const auto written = checkup.ask("run folder", file_seconds, timed(write));
  if (checkup.broadcast(!failed_alone(written).empty()).get<bool>()) {
    if (checkup.is_root()) scratch.remove();
    return checkup.conclude("run folder", [&] { return Row{.detail = "", .suspects = failed_alone(written)}; });
  }
  const auto ring = ring_over_hosts(checkup.hosts());
  const auto place = std::ranges::find(ring, checkup.rank()) - ring.begin();
  const int writer = ring[static_cast<std::size_t>(place + 1) % ring.size()];
  const auto read = [&] { read_back(file_of(writer), checkup.name(writer)); };
  checkup.check("run folder", file_seconds, timed(read), [&](const auto& seen) {
    scratch.remove();
    return Row{.detail = fmt::format("written, fsynced and renamed in {}; read back {} in {}",
                                     describe_slowest(written, checkup), ring.size() == 1 ? "alone" : "by another rank",
                                     describe_slowest(seen, checkup))};
  });
}

void check_data(Checkup& checkup, const TrainConfig& config, const Plan& plan) {
  const int rank = checkup.rank();
  const auto read = checkup.ask("data", file_seconds,
                                [&]() -> json { return plan.produces(rank) ? read_two(config, plan, rank) : json(); });
  const auto tries = checkup.broadcast(find_helpers(checkup, read));
  const auto mine = std::ranges::find_if(tries, [&](const auto& one) { return one.at("helper") == rank; });
  const auto again = checkup.ask("data", file_seconds, [&]() -> json {
    if (mine == tries.end() || rank == mine->at("of")) return json::object();
    Beginnings(config, plan).read(mine->at("failed").at("archive"));
    return json::object();
  });
  checkup.conclude("data", [&] { return judge_data(checkup, read, tries, again); });
}

void check_space(Checkup& checkup, const TrainConfig& config, std::uint64_t bytes) {
  const int keep = config.checkpoint.keep;
  const auto work = [&]() -> json {
    if (config.checkpoint.every) check_disk_space(config.run.dir.value, bytes, keep);
    auto folder = fs::absolute(config.run.dir.value);
    std::error_code error;
    while (!fs::exists(folder, error) && folder.has_relative_path()) folder = folder.parent_path();
    const auto space = fs::space(folder);
    return {{"free", space.available}, {"disk", format_bytes(space.capacity)}};
  };
  checkup.check("space", file_seconds, work, [&](const auto& answers) {
    Row row{.detail = fmt::format("{} free", format_bytes(facts_of<std::uint64_t>(answers, "free").least().value))};
    row.detail += config.checkpoint.every
                      ? fmt::format(" for checkpoints of {}; checkpoint.keep={}", format_bytes(bytes), keep)
                      : ", no checkpoints";
    const auto disks = facts_of<std::string>(answers, "disk");
    for (const auto& odd : odd_ones(disks.values))
      row.suspects.push_back(
          {disks.ranks[odd.position],
           fmt::format("run.dir is on a disk of {} there, of {} elsewhere", disks.values[odd.position], odd.usual)});
    return row;
  });
}

}  // namespace millrace::preflight
