#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <thread>

#include "millrace/comm/agree.h"
#include "millrace/core/files.h"
#include "millrace/core/log.h"
#include "millrace/dataset/retrying_source.h"
#include "millrace/io/json.h"
#include "millrace/latents/latent_table.h"
#include "millrace/loader/sources.h"
#include "millrace/nn/device.h"
#include "preflight/checks.h"
#include "run/validation_set.h"

namespace millrace::preflight {
namespace {

using nlohmann::json;

constexpr double file_seconds = 45;
constexpr double plan_seconds = 120;    // rank 0 may have to count rows
constexpr double visible_seconds = 15;  // network file systems remember for a while that a name was not there
constexpr double retry_seconds = 5;
constexpr std::size_t file_bytes = 64 << 10;

// ---- pipeline folder ----------------------------------------------------------------------------------------------

// Names and sizes of all files of the components.
json facts_of_folder(const PipelineFolder& pipeline) {
  std::set<std::string> lines;
  std::uint64_t bytes = 0;
  for (const auto& [name, path] : pipeline.components())
    for (const auto& entry : fs::recursive_directory_iterator(path)) {
      if (!entry.is_regular_file()) continue;
      lines.insert(fmt::format("{}/{} {}", name, fs::relative(entry.path(), path).string(), entry.file_size()));
      bytes += entry.file_size();
    }
  return {{"listing", fmt::format("{}", fmt::join(lines, "\n"))}, {"files", lines.size()}, {"bytes", bytes}};
}

// The lines that only one of two listings has.
std::string difference(const std::string& own, const std::string& usual) {
  const auto lines_of = [](const std::string& text) {
    std::set<std::string> lines;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) lines.insert(line);
    return lines;
  };
  const auto mine = lines_of(own), theirs = lines_of(usual);
  std::vector<std::string> texts;
  for (const auto& line : theirs)
    if (!mine.contains(line)) texts.push_back("lacks " + line + " bytes");
  for (const auto& line : mine)
    if (!theirs.contains(line)) texts.push_back("has " + line + " bytes");
  if (texts.size() > 3) texts.resize(3), texts.push_back("...");
  return fmt::format("{}", fmt::join(texts, ", "));
}

// ---- plan ----------------------------------------------------------------------------------------------------------

void check_channels(const TrainConfig& config, const PipelineFolder& pipeline, const EncodingShape& shape) {
  const auto file = config.model.unet.config;
  const auto unet = UNet2DConditionConfig::from_json(file ? read_json_object(*file) : pipeline.config("unet"));
  if (2 * unet.in_channels != shape.moments[0])
    fail(Exit::usage, "model.pipeline: the U-Net takes {} channels, the VAE makes {}", unet.in_channels,
         shape.moments[0] / 2);
  for (const auto width : unet.cross_attention_dim)
    if (width != shape.text[1])
      fail(Exit::usage, "model.pipeline: the U-Net attends to embeddings of width {}, the text encoder makes {}", width,
           shape.text[1]);
}

std::string describe_plan(const Plan& plan, int ranks) {
  return fmt::format("{}; {} archives, {} stripes in {} splits; parcels of at most {}",
                     plan.roles.all_in_one
                         ? fmt::format("{} trains and produces", ranks == 1 ? "one rank" : "every rank")
                         : fmt::format("trainers {}, producers {}", fmt::join(plan.roles.trainers, " "),
                                       fmt::join(plan.roles.producers, " ")),
                     plan.data.manifest.archives.size(), plan.data.stripes.stripes, plan.data.stripes.splits.size(),
                     format_bytes(plan.parcel_bytes));
}

// ---- run folder ---------------------------------------------------------------------------------------------------

fs::path file_of(const ScratchFolder& scratch, int rank) {
  return scratch.path() / fmt::format("rank-{:05d}", rank);
}

std::string content_of(const ScratchFolder& scratch, int rank) {
  std::string text = fmt::format("{} {} ", scratch.path().string(), rank);
  text.resize(file_bytes, '.');
  return text;
}

// What another rank has written, as soon as it is there.
json read_back(const ScratchFolder& scratch, int writer, const Checkup& checkup) {
  const auto file = file_of(scratch, writer);
  for (const Stopwatch watch;;) {
    std::error_code error;
    if (fs::exists(file, error)) {
      if (read_file(file) == content_of(scratch, writer)) return {{"seconds", watch.seconds()}};
      fail(Exit::io, "it reads other bytes in {} than {} wrote", file.string(), checkup.name(writer));
    }
    if (watch.seconds() > visible_seconds)
      fail(Exit::io, "it does not see {}, which {} wrote {:.0f} s ago: is run.dir the same folder there?",
           file.string(), checkup.name(writer), visible_seconds);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

// "12 ms (slowest: rank 2 on n1)".
std::string slowest(const std::vector<Answer>& answers, const Checkup& checkup) {
  std::vector<int> ranks;
  const auto seconds = facts_of<double>(answers, "seconds", ranks);
  const auto most = std::ranges::max_element(seconds);
  return fmt::format("{} (slowest: {})", describe_seconds(*most),
                     checkup.name(ranks[static_cast<std::size_t>(most - seconds.begin())]));
}

// ---- data ----------------------------------------------------------------------------------------------------------

std::unique_ptr<SampleSource> open_source(const TrainConfig& config, const Plan& plan) {
  const auto& source = config.data.train;
  if (source.type == SourceConfig::Type::latents && is_latent_parquet(source)) {
    const auto vae = AutoencoderKLConfig::from_json(plan.pipeline.config("vae"));
    return make_latent_table_source(
        source, plan.data.manifest,
        {plan.encoding.shape, config.transform.resolution, vae.scaling_factor, vae.shift_factor.value_or(0)});
  }
  return make_source(source, plan.data.manifest, config.transform.resolution, /*index=*/"never");
}

std::size_t bytes_of(const RawRow& row) {
  if (const auto* sample = std::get_if<RawSample>(&row))
    return sample->image.size() + sample->caption.size() + sample->json.size();
  if (const auto* encoded = std::get_if<EncodedSample>(&row))
    return 2 * (encoded->encoding.moments.size() + encoded->encoding.text.size());
  return 0;
}

// The first rows of an archive.
struct Reading {
  std::size_t rows = 0, bytes = 0;
  double seconds = 0;
  std::string broken;  // what is wrong inside the archive; a run would count it and go on
};
Reading read_beginning(const SampleSource& source, std::uint32_t archive) {
  constexpr std::size_t most_rows = 64, most_bytes = 32 << 20;
  constexpr double most_seconds = 3;
  Reading reading;
  const Stopwatch watch;
  const auto reader = source.open({.archive = archive}, 0);
  while (reading.rows < most_rows && reading.bytes < most_bytes && watch.seconds() < most_seconds) {
    const auto row = reader->next();
    if (!row) break;
    const auto* rejected = std::get_if<Rejected>(&*row);
    if (rejected && rejected->reason == RejectReason::archive_error) reading.broken = rejected->detail;
    ++reading.rows;
    reading.bytes += bytes_of(*row);
  }
  reading.seconds = watch.seconds();
  return reading;
}

// Up to three archives of a producer, so that all producers together look everywhere.
std::vector<std::uint32_t> choose_archives(std::size_t archives, std::size_t producer, std::size_t producers) {
  constexpr std::size_t most = 3;
  std::set<std::uint32_t> chosen;
  for (std::size_t i = 0; i < most; ++i)
    chosen.insert(static_cast<std::uint32_t>((i * producers + producer) * archives / (most * producers)));
  return {chosen.begin(), chosen.end()};
}

// Reads the beginnings of archives; those that cannot be read are among the facts.
json try_archives(const TrainConfig& config, const Plan& plan, const std::vector<std::uint32_t>& archives) {
  StorageRetry retry(StorageRetry::Seconds(std::min(retry_seconds, config.data.retry_for.count)));
  const auto source = open_source(config, plan);
  const RetryingSource patient(*source, retry);
  json facts = {{"rows", 0}, {"bytes", 0}, {"seconds", 0.0}, {"broken", json::array()}, {"failed", json::array()}};
  std::size_t rows = 0, bytes = 0;
  double seconds = 0;
  for (const auto archive : archives) {
    try {
      const auto reading = read_beginning(patient, archive);
      rows += reading.rows;
      bytes += reading.bytes;
      seconds += reading.seconds;
      if (!reading.broken.empty())
        facts["broken"].push_back(fmt::format("{}: {}", plan.data.manifest.archives[archive].path, reading.broken));
    } catch (const Error& error) {
      facts["failed"].push_back({{"archive", archive},
                                 {"exit", static_cast<int>(error.exit())},
                                 {"what", error.what()},
                                 {"hint", error.hint()}});
    }
  }
  facts["rows"] = rows;
  facts["bytes"] = bytes;
  facts["seconds"] = seconds;
  return facts;
}

Row judge_data(const std::vector<Answer>& answers, const Checkup& checkup) {
  std::size_t rows = 0, bytes = 0;
  std::vector<int> ranks;
  std::vector<double> rates;
  std::set<std::string> broken;
  for (const auto n : facts_of<std::size_t>(answers, "rows", ranks)) rows += n;
  for (const auto n : facts_of<std::size_t>(answers, "bytes", ranks)) bytes += n;
  for (const auto& names : facts_of<std::vector<std::string>>(answers, "broken", ranks))
    broken.insert(names.begin(), names.end());
  const auto seconds = facts_of<double>(answers, "seconds", ranks);
  for (std::size_t i = 0; i < ranks.size(); ++i)
    rates.push_back(answers[ranks[i]].facts.at("bytes").get<double>() / std::max(1e-6, seconds[i]));
  Row row;
  row.suspects = failed_alone(answers);
  const auto least = std::ranges::min_element(rates);
  row.detail = fmt::format("{} rows, {}, by {} {}; slowest {} ({})", rows, format_bytes(bytes), ranks.size(),
                           ranks.size() == 1 ? "producer" : "producers", describe_rate(*least),
                           checkup.name(ranks[static_cast<std::size_t>(least - rates.begin())]));
  for (const auto& text : broken) row.detail += "\nbroken, a run would count it: " + text;
  return row;
}

}  // namespace

PipelineFolder check_model_folder(Checkup& checkup, const TrainConfig& config) {
  std::optional<PipelineFolder> pipeline;
  const auto answers = checkup.ask("model folder", file_seconds, [&] {
    pipeline = PipelineFolder::open(config.model.pipeline.value);
    return facts_of_folder(*pipeline);
  });
  Row row;
  if (checkup.is_root()) {
    row.suspects = failed_alone(answers);
    std::vector<int> ranks;
    const auto listings = facts_of<std::string>(answers, "listing", ranks);
    std::string usual;
    for (const auto i : odd_ones(listings, usual))
      row.suspects.push_back(
          {ranks[i], fmt::format("{}: it {}", config.model.pipeline.value, difference(listings[i], usual))});
    row.ends = true;
    if (row.suspects.empty())
      row.detail = fmt::format("{}: {} files, {}, the same names and sizes everywhere", config.model.pipeline.value,
                               answers[0].facts.at("files").get<int>(),
                               format_bytes(answers[0].facts.at("bytes").get<std::uint64_t>()));
  }
  checkup.conclude("model folder", row);
  return std::move(*pipeline);
}

Plan check_plan(Checkup& checkup, const Machines& machines, const TrainConfig& config, PipelineFolder pipeline) {
  const auto& session = machines.session;
  const auto& world = session.world.group();
  Plan plan{.pipeline = std::move(pipeline), .roles = machines.roles};
  checkup.ask("plan", plan_seconds, [&] {
    plan.data = broadcast_data_plan(world, config.data.train, config.data, config.batch.global);
    plan.encoding = broadcast_encoding_plan(world, config, plan.pipeline, plan.data.manifest,
                                            parse_dtype(config.encode.dtype, session.device));
    check_channels(config, plan.pipeline, plan.encoding.shape);
    const int stripes = static_cast<int>(plan.data.stripes.stripes);
    plan.routing = plan_routing(plan.roles, stripes, config.batch.global, config.batch.micro);
    const auto parcel = plan_parcel_size(config.batch.global / stripes);
    plan.parcel_bytes = plan_parcel_bytes(parcel.samples(), plan.encoding.shape.moments, plan.encoding.shape.text);
    plan_validation(session, config, plan.pipeline, plan.roles, plan.encoding.shape);
    plan.of_role = world.split(plan.trains(world.rank()) ? 0 : 1, world.rank());
    return true;
  });
  checkup.conclude("plan", {.detail = describe_plan(plan, world.size()), .suspects = {}});
  return plan;
}

void check_run_folder(Checkup& checkup, ScratchFolder& scratch) {
  const int rank = checkup.world().rank();
  checkup.ask("run folder", file_seconds, [&]() -> json {
    if (!checkup.is_root()) return nullptr;
    scratch.make();
    return true;
  });
  const auto written = checkup.ask("run folder", file_seconds, [&]() -> json {
    const Stopwatch watch;
    write_file_atomically(file_of(scratch, rank), content_of(scratch, rank));
    return {{"seconds", watch.seconds()}};
  });
  json failed = json::array();
  for (std::size_t i = 0; i < written.size(); ++i)
    if (written[i].error) failed.push_back(i);
  failed = checkup.tell(failed);
  const auto others = partners(checkup.world().hosts());
  const auto seen = checkup.ask("run folder", file_seconds, [&]() -> json {
    if (std::ranges::find(failed, json(others[rank])) != failed.end()) return nullptr;
    return read_back(scratch, others[rank], checkup);
  });
  Row row;
  if (checkup.is_root()) {
    scratch.remove();
    row.suspects = failed_alone(written);
    for (const auto& suspect : failed_alone(seen)) row.suspects.push_back(suspect);
    row.detail = fmt::format("written, fsynced and renamed in {}; read back {} in {}", slowest(written, checkup),
                             checkup.world().size() == 1 ? "alone" : "by another rank", slowest(seen, checkup));
  }
  checkup.conclude("run folder", row);
}

void check_data(Checkup& checkup, const TrainConfig& config, const Plan& plan) {
  const int rank = checkup.world().rank();
  const auto& producers = plan.roles.producers;
  const auto read = checkup.ask("data", file_seconds, [&]() -> json {
    if (!plan.produces(rank)) return nullptr;
    return try_archives(config, plan,
                        choose_archives(plan.data.manifest.archives.size(),
                                        static_cast<std::size_t>(position_in(producers, rank)), producers.size()));
  });
  // What one rank cannot read, another one tries: is it the rank or the archive?
  json failed = json::array();
  for (std::size_t i = 0; i < read.size(); ++i)
    if (!read[i].facts.is_null() && !read[i].facts.at("failed").empty())
      failed.push_back({{"rank", i}, {"failure", read[i].facts.at("failed")[0]}});
  failed = checkup.tell(failed);
  const auto others = partners(checkup.world().hosts());
  const auto again = checkup.ask("data", file_seconds, [&]() -> json {
    json could = json::array();
    for (const auto& entry : failed) {
      if (others[entry.at("rank").get<std::size_t>()] != rank) continue;
      const auto facts = try_archives(config, plan, {entry.at("failure").at("archive").get<std::uint32_t>()});
      could.push_back(facts.at("failed").empty());
    }
    return {{"could", could}};
  });
  Row row;
  on_root(checkup.group(), [&] {
    row = judge_data(read, checkup);
    std::map<int, std::size_t> next;  // of each helper's answers
    for (const auto& entry : failed) {
      const int of = entry.at("rank"), helper = others[of];
      const auto& failure = entry.at("failure");
      const std::string what = failure.at("what");
      if (helper == of || !again[helper].facts.at("could")[next[helper]++].get<bool>())
        throw Error(static_cast<Exit>(failure.at("exit").get<int>()), what, failure.at("hint"));
      row.suspects.push_back({of, fmt::format("{} ({} can read it)", what, checkup.name(helper))});
    }
  });
  checkup.conclude("data", row);
}

void check_space(Checkup& checkup, const TrainConfig& config, std::uint64_t checkpoint_bytes) {
  fs::path folder = fs::absolute(config.run.dir.value);
  const auto answers = checkup.ask("space", file_seconds, [&]() -> json {
    std::error_code error;
    while (!fs::exists(folder, error) && folder.has_relative_path()) folder = folder.parent_path();
    const auto space = fs::space(folder);
    return {{"free", space.available}};
  });
  Row row;
  on_root(checkup.group(), [&] {
    row.suspects = failed_alone(answers);
    std::vector<int> ranks;
    const auto free = std::ranges::min(facts_of<std::uint64_t>(answers, "free", ranks));
    const int kept = config.checkpoint.every ? config.checkpoint.keep : 0;
    const auto needed = static_cast<std::uint64_t>(kept ? kept + 1 : 0) * checkpoint_bytes;  // and one being written
    row.detail = kept ? fmt::format("{} free for {} checkpoints of {} and one being written{}", format_bytes(free),
                                    kept, format_bytes(checkpoint_bytes),
                                    config.checkpoint.keep_every ? "; checkpoint.keep_every keeps more" : "")
                      : fmt::format("{} free, no checkpoints", format_bytes(free));
    if (free < needed)
      throw Error(Exit::io,
                  fmt::format("run.dir: {} has {} free, and {} checkpoints with one being written take {}",
                              config.run.dir.value, format_bytes(free), kept, format_bytes(needed)),
                  "make room, or lower checkpoint.keep");
  });
  checkup.conclude("space", row);
}

}  // namespace millrace::preflight
