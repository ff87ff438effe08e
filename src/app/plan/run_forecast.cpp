#include "plan/run_forecast.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "millrace/core/error.h"
#include "millrace/core/text.h"
#include "millrace/core/units.h"
#include "millrace/loader/data_plan.h"
#include "millrace/train/balance.h"
#include "plan/bench_rates.h"
#include "plan/run_costs.h"
#include "train/micro_batch.h"

namespace millrace {
namespace {

constexpr double seconds_of_hour = 3600;

// The cluster's GPUs rank by rank, as the job's start lists its nodes.
struct Ranks {
  std::vector<const GpuModel*> gpu;
  std::vector<std::string> host;
};

Ranks ranks_of(const std::vector<NodeGroup>& cluster) {
  Ranks ranks;
  int node = 0;
  for (const auto& group : cluster)
    for (int n = 0; n < group.nodes; ++n, ++node)
      for (int g = 0; g < group.gpus_per_node; ++g) {
        ranks.gpu.push_back(group.gpu);
        ranks.host.push_back(fmt::format("node{}", node));
      }
  return ranks;
}

std::set<const GpuModel*> models_in(const std::vector<NodeGroup>& cluster) {
  std::set<const GpuModel*> kinds;
  for (const auto& group : cluster) kinds.insert(group.gpu);
  return kinds;
}

// Of a cluster of several kinds the fastest at training, where roles.* leave open who trains; else null.
const GpuModel* choose_trainer(const std::vector<NodeGroup>& cluster, const RolesConfig& config,
                               const RunCosts& costs) {
  const auto kinds = models_in(cluster);
  if (kinds.size() == 1 || config.producer_gpu || config.trainer_gpu || config.producers.value) return nullptr;
  return *std::ranges::max_element(kinds, {}, [&](const auto* gpu) { return costs.train_rate(*gpu); });
}

// As `train` will find them: by the names that the drivers give.
Roles roles_of(const Ranks& ranks, const RolesConfig& config, const GpuModel* trainer) {
  if (!trainer) {
    std::vector<std::string> names;
    for (const auto* gpu : ranks.gpu) names.emplace_back(gpu->driver);
    return plan_roles(names, config);
  }
  Roles roles;
  for (std::size_t rank = 0; rank < ranks.gpu.size(); ++rank)
    (ranks.gpu[rank] == trainer ? roles.trainers : roles.producers).push_back(static_cast<int>(rank));
  return roles;
}

// data.stripes, or the number that archives enough would give.
int stripes_of(const TrainConfig& config) {
  return config.data.stripes.value ? *config.data.stripes.value : most_stripes(config.batch.global);
}

[[noreturn]] void fail_memory(const PlannedRole& role, const ModelConfig& model) {
  const bool trains = role.kind != PlannedRole::Kind::encoders;
  const auto* const key = trains ? "batch.micro" : "encode.batch_size";
  std::string hint =
      role.fitting_batch > 0 ? fmt::format("{}={} fits", key, role.fitting_batch)
      : trains               ? "a smaller encode.batch_size where ranks do both, ema.enabled=false, a latent cache "
                               "(data.train.type=latents) where these are not so yet, parallel.strategy=full_shard over more "
                               "trainers, or larger GPUs would do"
                             : "larger GPUs, or encode.dtype=bfloat16, would do";
  if (trains && !model.gradient_checkpointing) hint += "; so may model.gradient_checkpointing=true";
  throw Error(Exit::usage,
              fmt::format("{}: {} = {} wants {:.1f} GiB, {} has {:.1f}", to_string(role.kind), key, role.batch,
                          role.memory_gib, role.gpu->name, role.gpu->memory_gib),
              hint);
}

class Forecaster {
 public:
  Forecaster(const std::vector<NodeGroup>& cluster, const TrainConfig& config, const PlanConfig& plan,
             const RunShapes& shapes)
      : cluster_(cluster),
        config_(config),
        plan_config_(plan),
        costs_(cluster, config, shapes),
        ranks_(ranks_of(cluster)) {
    if (plan.rates) measured_ = read_bench_rates(*plan.rates, config.batch.micro.value, config.transform.resolution);
    const bool has_cpus = std::ranges::any_of(cluster, [](const auto& group) { return group.gpu->is_cpu(); });
    if (has_cpus && models_in(cluster).size() > 1) fail(Exit::usage, "--nodes: cpu does not go together with GPUs");
    if (has_cpus && !(measured_.train && (measured_.encode || !(costs_.encodes() || costs_.text_on_trainers()))))
      throw Error(Exit::usage, "--nodes: the rates of this CPU are not known",
                  "give plan.rates=FILE with what `millrace bench step --json` and `millrace bench encode --json` "
                  "print, both with threads=N, "
                  "N = the cores of a rank");
    forecast_.chosen_trainer = choose_trainer(cluster, config.roles, costs_);
    roles_ = roles_of(ranks_, config.roles, forecast_.chosen_trainer);
    shards_ = plan_shards(config.parallel, trainer_hosts());
  }

  RunForecast run() {
    share_batch();
    if (roles_.all_in_one) {
      add_all_in_one();
    } else {
      add_roles();
    }
    for (const auto& role : forecast_.roles)
      if (costs_.on_gpus() && role.memory_gib > role.gpu->memory_gib) fail_memory(role, config_.model);
    add_length();
    add_checkpoints();
    add_cost();
    return forecast_;
  }

 private:
  bool trainers_encode() const { return roles_.all_in_one && costs_.encodes(); }

  // As `train` will choose it there, or nearly: drivers report a little less memory than a GPU's name says.
  int micro_batch() const {
    if (config_.batch.micro.value) return *config_.batch.micro.value;
    if (!costs_.on_gpus())
      throw Error(Exit::usage, "batch.micro=auto: how much memory these CPUs have is not known here",
                  "`millrace train --dry-run` there says what it stands for; the plan takes that number");
    double least = std::numeric_limits<double>::max();
    for (const auto& [gpu, ranks] : kinds_of(roles_.trainers)) least = std::min(least, gpu->memory_gib * gib);
    return choose_micro_batch(routing_, config_.batch.global,
                              costs_.memory().fitting_micro_batch(least, shards_, trainers_encode()));
  }

  // A step lasts as long as the trainer with the largest share takes.
  void share_batch() {
    forecast_.stripes = stripes_of(config_);
    routing_ = plan_routing(roles_, forecast_.stripes);
    forecast_.micro_batch = micro_batch_of_share(routing_, config_.batch.global, micro_batch());
    const int share = routing_.largest_share(config_.batch.global);
    forecast_.accumulation = (share + forecast_.micro_batch - 1) / forecast_.micro_batch;
    evenness_ = config_.batch.global / (static_cast<double>(share) * routing_.trainers());
  }

  // Images a second of one trainer. It has the text encoder too with encode.text_on=trainer; `bench encode` has been
  // measured on the encoders' GPU.
  double train_rate(const GpuModel& gpu) const {
    const double unet = measured_.train.value_or(costs_.train_rate(gpu));
    if (!costs_.text_on_trainers()) return unet;
    const bool is_same_gpu = models_in(cluster_).size() == 1;
    const double both = is_same_gpu && measured_.encode ? *measured_.encode : costs_.encode_rate(gpu);
    return 1 / (1 / unet + costs_.text_share() / both);
  }
  double encode_rate(const GpuModel& gpu) const {
    const double both = measured_.encode.value_or(costs_.encode_rate(gpu));
    return costs_.text_on_trainers() ? both / (1 - costs_.text_share()) : both;
  }

  using Kind = PlannedRole::Kind;
  using Source = PlannedRole::Source;
  static Source source_of(const std::optional<double>& measured, const Rates& rates) {
    return measured ? Source::measured : rates.is_published ? Source::published : Source::peak;
  }

  std::vector<std::string> trainer_hosts() const {
    std::vector<std::string> hosts;
    for (const int rank : roles_.trainers) hosts.push_back(ranks_.host[static_cast<std::size_t>(rank)]);
    return hosts;
  }

  // Ranks of a role by their kind of GPU, in the cluster's order.
  std::vector<std::pair<const GpuModel*, int>> kinds_of(const std::vector<int>& ranks) const {
    std::vector<std::pair<const GpuModel*, int>> kinds;
    for (const int rank : ranks) {
      const auto* gpu = ranks_.gpu[static_cast<std::size_t>(rank)];
      const auto found = std::ranges::find(kinds, gpu, &std::pair<const GpuModel*, int>::first);
      if (found == kinds.end()) {
        kinds.emplace_back(gpu, 1);
      } else {
        ++found->second;
      }
    }
    return kinds;
  }

  void fill_trainer(PlannedRole& role) const {
    role.batch = forecast_.micro_batch;
    const auto bytes = [&](int images) { return costs_.memory().trainer(images, shards_, trainers_encode()); };
    role.memory_gib = bytes(role.batch) / gib;
    if (!costs_.on_gpus()) return;
    const int fitting = fitting_batch(role.gpu->memory_gib * gib, bytes);
    role.fitting_batch = fitting > 0 ? choose_micro_batch(routing_, config_.batch.global, fitting) : 0;
  }

  void add_all_in_one() {
    const auto kinds = kinds_of(roles_.trainers);
    ensure(kinds.size() == 1, "ranks of one kind do everything");  // others have a role each
    const auto [gpu, ranks] = kinds.front();
    const double train = 1 / train_rate(*gpu), encode = costs_.encodes() ? 1 / encode_rate(*gpu) : 0;
    PlannedRole role{costs_.encodes() ? Kind::both : Kind::trainers, ranks, gpu};
    fill_trainer(role);
    role.images_per_second = ranks / (train + encode);
    role.source = source_of(measured_.train, gpu->train);
    if (costs_.encodes()) role.source = std::max(role.source, source_of(measured_.encode, gpu->encode));
    forecast_.images_per_second = role.images_per_second * evenness_;
    forecast_.is_limited_by_encoders = train < encode;
    forecast_.roles.push_back(role);
  }

  void add_roles() {
    double slowest = 0, slowest_encoder = 0;
    for (const auto& [gpu, ranks] : kinds_of(roles_.trainers)) {
      PlannedRole role{Kind::trainers, ranks, gpu};
      fill_trainer(role);
      role.images_per_second = ranks * train_rate(*gpu);
      role.source = source_of(measured_.train, gpu->train);
      slowest = slowest == 0 ? train_rate(*gpu) : std::min(slowest, train_rate(*gpu));
      forecast_.roles.push_back(role);
    }
    const double demand = slowest * evenness_ * static_cast<double>(roles_.trainers.size());
    for (const auto& [gpu, ranks] : kinds_of(roles_.producers)) {
      PlannedRole role{Kind::encoders, ranks, gpu};
      const auto bytes = [&](int images) { return costs_.memory().encoder(images); };
      if (costs_.encodes()) {
        role.batch = config_.encode.batch_size;
        role.memory_gib = bytes(role.batch) / gib;
        if (costs_.on_gpus()) role.fitting_batch = fitting_batch(role.gpu->memory_gib * gib, bytes);
        role.images_per_second = ranks * encode_rate(*gpu);
        role.source = source_of(measured_.encode, gpu->encode);
        slowest_encoder = slowest_encoder == 0 ? encode_rate(*gpu) : std::min(slowest_encoder, encode_rate(*gpu));
      }
      forecast_.roles.push_back(role);
    }
    forecast_.images_per_second = demand;
    if (costs_.encodes()) balance(demand, slowest_encoder);
  }

  // Images a second of the whole run that the encoder which takes longest for its stripes allows: a step takes as much
  // of each of them.
  double encoders_pace() const {
    double pace = std::numeric_limits<double>::max();
    for (std::size_t i = 0; i < roles_.producers.size(); ++i) {
      const auto& gpu = *ranks_.gpu[static_cast<std::size_t>(roles_.producers[i])];
      const auto share = routing_.stripes_of_producer(static_cast<int>(i)).size();
      pace = std::min(pace, encode_rate(gpu) * forecast_.stripes / static_cast<double>(share));
    }
    return pace;
  }

  // `of_one`: images a second of the slowest encoder.
  void balance(double demand, double of_one) {
    const double supply = encoders_pace();
    const double wanted = demand / of_one;  // encoders, if stripes could be shared out evenly
    forecast_.is_limited_by_encoders = wanted - supply / of_one > rank_tolerance;
    forecast_.images_per_second = std::min(supply, demand);
    forecast_.balanced_encoders = producers_worth(wanted, forecast_.stripes);
    // Of several kinds those that are there may do where as many of the slowest would not.
    const int encoders = static_cast<int>(roles_.producers.size());
    if (!forecast_.is_limited_by_encoders)
      forecast_.balanced_encoders = std::min(forecast_.balanced_encoders, encoders);
    forecast_.encoders_per_trainer = wanted / static_cast<double>(roles_.trainers.size());
  }

  void add_length() {
    const auto& duration = config_.duration;
    const double global = config_.batch.global;
    forecast_.samples = duration.unit == Duration::Unit::seconds ? duration.count * forecast_.images_per_second
                        : duration.unit == Duration::Unit::steps ? duration.count * global
                                                                 : duration.count;
    forecast_.steps = forecast_.samples / global;
    forecast_.seconds = forecast_.samples / forecast_.images_per_second;
  }

  void add_checkpoints() {
    const auto& checkpoint = config_.checkpoint;
    if (!checkpoint.every) return;
    const bool in_seconds = checkpoint.keep_every && checkpoint.keep_every->unit == Duration::Unit::seconds;
    forecast_.checkpoints = plan_checkpoints(
        checkpoint_bytes(costs_.memory().unet_elements(), config_.ema.enabled), checkpoint,
        in_seconds ? Duration::seconds(forecast_.seconds) : Duration::steps(forecast_.steps), config_.batch.global, {});
  }

  std::optional<double> price_of(const GpuModel& gpu) const {
    const auto is_its_name = [&](const auto& entry) { return lower(entry.first) == gpu.name; };
    const auto found = std::ranges::find_if(plan_config_.prices, is_its_name);
    if (found == plan_config_.prices.end()) return std::nullopt;
    const auto price = parse_number<double>(found->second);
    if (!price || !std::isfinite(*price) || *price < 0)
      fail(Exit::usage, "plan.prices.{}: \"{}\" is no price", gpu.name, found->second);
    return price;
  }

  void add_cost() {
    for (const auto& [name, price] : plan_config_.prices)
      if (std::ranges::find(known_gpus(), lower(name), &GpuModel::name) == known_gpus().end())
        throw Error(Exit::usage, fmt::format("plan.prices.{}: no GPU model of that name is known", name),
                    "prices are per GPU hour, under the names of --nodes: plan.prices.a100-80g=4.10");
    const double hours = forecast_.seconds / seconds_of_hour;
    double cost = 0;
    for (const auto& group : cluster_) {
      forecast_.gpu_hours += group.gpus() * hours;
      const auto price = price_of(*group.gpu);
      const auto is_told = std::ranges::count(forecast_.without_price, group.gpu->name) > 0;
      if (!price && !is_told) forecast_.without_price.emplace_back(group.gpu->name);
      cost += price.value_or(0) * group.gpus() * hours;
    }
    if (forecast_.without_price.empty()) forecast_.cost = cost;
  }

  const std::vector<NodeGroup>& cluster_;
  const TrainConfig& config_;
  const PlanConfig& plan_config_;
  const RunCosts costs_;
  const Ranks ranks_;
  BenchRates measured_;
  Roles roles_;
  Routing routing_;      // of its stripes
  ShardPlan shards_;     // of the trainers
  double evenness_ = 1;  // 1 where all trainers have equal shares of a step
  RunForecast forecast_;
};

}  // namespace

const char* to_string(PlannedRole::Kind kind) {
  switch (kind) {
    case PlannedRole::Kind::trainers:
      return "trainers";
    case PlannedRole::Kind::encoders:
      return "encoders";
    case PlannedRole::Kind::both:
      break;
  }
  return "trainers and encoders";
}

void PlanConfig::describe(config::Section& section) {
  section.key("prices", prices, "money per GPU hour by GPU model, as {a100-80g: 4.10}");
  section.key("rates", rates,
              "file of lines of `bench step --json` and `bench encode --json` from the GPUs themselves; null = what "
              "others have published");
}

RunForecast forecast_run(const std::vector<NodeGroup>& cluster, const TrainConfig& config, const PlanConfig& plan,
                         const RunShapes& shapes) {
  return Forecaster(cluster, config, plan, shapes).run();
}

}  // namespace millrace
