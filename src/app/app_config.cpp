#include "app_config.h"

#include "millrace/core/hash.h"
#include "millrace/io/net/urls.h"
#include "sections.h"

namespace millrace {
namespace {

// Where rows and prompts lie tells nothing of them: their digests are in the identity.
SourceConfig without_paths(SourceConfig source) {
  source.path.clear();
  source.idx_to_prompt.reset();
  return source;
}

// `identity`: see identity_of_losses.
template <class Config, class... Sections>
LoopConfig loop_of(const Config& c, int micro_batch, const nlohmann::json& identity, const Sections&... of_losses) {
  // Means of more samples vary less.
  const auto settings = (config::dump_yaml(of_losses) + ...) + config::dump_yaml(without_paths(c.data.train)) +
                        config::dump_yaml(c.data.images) + config::dump_yaml(c.transform) +
                        std::to_string(c.batch.global) + identity.dump();
  return {c.run.dir, c.duration, {c.batch.global, micro_batch}, c.checkpoint, c.log,
          c.record,  c.guard,    hash128(settings).hex()};
}

// Of what is written.
void check_folder(const char* key, const std::string& path, config::Report& report) {
  if (is_url(path))
    report.problem(key, fmt::format("{} is an address; it must be a folder that all hosts of the run see", path));
}

void check_optim(const OptimConfig& optim, const Duration& duration, config::Report& report) {
  if (optim.warmup.unit == Duration::Unit::seconds) report.problem("optim.warmup", "must be in steps or samples");
  if (optim.schedule != Schedule::constant && duration.unit == Duration::Unit::seconds)
    report.problem("optim.schedule", "linear and cosine need a duration in steps or samples", {"duration"});
}

// `micro`: batch.micro, or 1 for auto. What else it has to be is known with the trainers' shares: micro_batch_of_share.
template <class Config>
void check_common(const Config& c, int micro, config::Report& report) {
  if (micro > c.batch.global)
    report.problem("batch.global", fmt::format("{} is less than batch.micro = {}", c.batch.global, micro),
                   {"batch.micro"});
  if (!c.data.stripes.is_auto() && c.batch.global % *c.data.stripes.value != 0)
    report.problem("data.stripes",
                   fmt::format("{} does not divide batch.global = {}", *c.data.stripes.value, c.batch.global),
                   {"batch.global"});
  check_folder("run.dir", c.run.dir, report);
  check_folder("checkpoint.resume", c.checkpoint.resume, report);
  c.data.check(report);
  check_optim(c.optim, c.duration, report);
  c.guard.check(report);
  if (c.log.prometheus && !c.log.prometheus->ends_with(".prom"))
    report.problem("log.prometheus", "must end in .prom: node exporter passes over all other files");
}

void check_encoding(const ProducerConfig& c, config::Report& report) {
  if (c.encode.cache) check_folder("encode.cache", *c.encode.cache, report);
  if (c.encode.cache && (c.transform.crop == TransformConfig::Crop::random || c.transform.flip > 0))
    report.problem("encode.cache",
                   "needs transform.crop=center and transform.flip=0: random ones make a new image in every epoch",
                   {"transform.crop", "transform.flip"});
}

}  // namespace

void PreprocessConfig::describe(config::Section& section) {
  ProducerConfig::describe(section);
  section.at("model").keep({"pipeline"});
  ignore_models_of_trainings(section.at("model"));
  section.at("data").ignore({"validation", "stripes", "shuffle_block"});
  describe_hang_guard(section, guard);
  describe_threads(section, threads);
  ignore_other_sections(section);
}

void TrainConfig::describe(config::Section& section) {
  ProducerConfig::describe(section);
  section.section("roles", roles, "which ranks produce and which train");
  section.section("batch", batch, "samples per step");
  section.key("duration", duration, "length of the run: steps, samples or time").above(0);
  section.section("objective", objective, "what the U-Net learns to predict");
  section.section("optim", optim, "AdamW");
  section.section("ema", ema, "exponential moving average of the weights");
  section.section("parallel", parallel, "how trainers share the model");
  section.section("checkpoint", checkpoint, "saving and resuming");
  section.section("samples", samples, "pictures during training");
  section.section("validation", validation, "the loss on data.validation");
  section.section("log", log, "metrics");
  section.section("record", record, "tensors of single steps");
  section.section("guard", guard, "what to do when numbers go wrong");
  describe_threads(section, threads);
  ignore_other_sections(section);
}

void RolesConfig::describe(config::Section& section) {
  section
      .key("producers", producers,
           "how many ranks, the last ones, only produce; auto = by GPU model where one is named, else every rank does "
           "both")
      .at_least(1);
  section.key("producer_gpu", producer_gpu, "ranks whose GPU's name contains this as whole words produce, e.g. a10g");
  section.key("trainer_gpu", trainer_gpu, "ranks whose GPU's name contains this as whole words train, e.g. a100");
}

void TrainBatchConfig::describe(config::Section& section) {
  section.key("global", global, "samples per optimizer step over all trainers").at_least(1);
  section
      .key(
          "micro", micro,
          "samples per forward pass of one trainer, at most its share of a step; auto = as many as fit, by the plan of "
          "its memory (train, preflight, plan)")
      .at_least(1);
}

LoopConfig TrainConfig::loop(int micro_batch, const nlohmann::json& identity) const {
  return loop_of(*this, micro_batch, identity, objective, tokenizer);
}

AutoencoderTrainConfig::AutoencoderTrainConfig() {
  data.train.needs_captions = false;
  batch = {32, 32};
  optim.warmup = Duration::steps(500);
}

void AutoencoderTrainConfig::Model::describe(config::Section& section) {
  section.key("pipeline", pipeline, "diffusers folder whose VAE is trained, or a VAE's own folder");
  section.key("init", init, {{"random", ModelConfig::Init::random}, {"pretrained", ModelConfig::Init::pretrained}},
              "fresh weights, or those of model.pipeline");
  describe_dtype(section, dtype);
  describe_channels_last(section, channels_last);
  describe_fused_kernels(section, fused_kernels);
  section.ignore_rest_of<ModelConfig>();
}

void AutoencoderTrainConfig::describe(config::Section& section) {
  section.section("run", run, "the run");
  section.section("model", model, "what is trained");
  section.section("autoencoder", autoencoder, "terms of the loss, and the scale of latents");
  section.section("data", data, "where samples come from, and in which order");
  section.section("transform", transform, "from image files to pixels");
  section.section("batch", batch, "samples per step");
  section.key("duration", duration, "length of the run: steps, samples or time").above(0);
  section.section("optim", optim, "AdamW");
  section.section("ema", ema, "exponential moving average of the weights");
  section.section("parallel", parallel, "how ranks share the model");
  section.section("checkpoint", checkpoint, "saving and resuming");
  section.section("log", log, "metrics");
  section.section("record", record, "tensors of single steps");
  section.section("guard", guard, "what to do when numbers go wrong");
  describe_threads(section, threads);
  ignore_other_sections(section);
}

LoopConfig AutoencoderTrainConfig::loop(const nlohmann::json& identity) const {
  return loop_of(*this, batch.micro, identity, autoencoder);
}

void check(const PreprocessConfig& c, config::Report& report) {
  check_folder("run.dir", c.run.dir, report);
  check_encoding(c, report);
  if (!c.encode.cache || c.encode.cache->empty())
    report.problem("encode.cache", "must be set (the folder that the latents go to)");
  if (c.data.train.type == SourceConfig::Type::latents)
    report.problem("data.train.type", "is latents: there is nothing left to encode");
  c.data.check(report);
  c.guard.check(report);
}

static void check_parallel(const ParallelConfig& parallel, config::Report& report) {
  if (parallel.shard_size.value && parallel.strategy != Strategy::hybrid)
    report.problem("parallel.shard_size", "has no use without strategy hybrid", {"parallel.strategy"});
}

void check(const TrainConfig& c, config::Report& report) {
  check_common(c, c.batch.micro.value_or(1), report);
  check_parallel(c.parallel, report);
  check_encoding(c, report);
  if (c.data.validation) c.data.validation->check(report);
  if (c.guard.on_repeat == GuardConfig::OnRepeat::rollback && !c.checkpoint.every)
    report.problem("guard.on_repeat", "rollback has nothing to go back to without checkpoints", {"checkpoint.every"});
  if (c.model.unet.ema_start && !c.ema.enabled)
    report.problem("model.unet.ema_start", "has no use without an EMA", {"ema.enabled"});
  if (c.roles.producers.value && (c.roles.producer_gpu || c.roles.trainer_gpu))
    report.problem("roles.producers",
                   "has no use beside roles.producer_gpu and roles.trainer_gpu, which say who produces",
                   {"roles.producer_gpu", "roles.trainer_gpu"});
  if (c.encode.cache && c.data.train.type == SourceConfig::Type::latents)
    report.problem("encode.cache", "has no use with data.train.type=latents, where data.train.path is the cache",
                   {"data.train.type"});
  if (c.objective.zero_terminal_snr && c.objective.prediction == Prediction::epsilon)
    report.problem("objective.zero_terminal_snr",
                   "needs objective.prediction=v_prediction: at zero signal the noise cannot be told from the input",
                   {"objective.prediction"});
}

void check(const AutoencoderTrainConfig& c, config::Report& report) {
  check_common(c, c.batch.micro, report);
  if (c.data.train.type == SourceConfig::Type::latents)
    report.problem("data.train.type", "is latents: an autoencoder is trained on images");
  if (c.data.validation) report.problem("data.validation", "is for train alone");
  c.autoencoder.check(report);
  if (c.guard.on_repeat == GuardConfig::OnRepeat::rollback)
    report.problem("guard.on_repeat", "rollback is for train alone");
  if (!c.checkpoint.every)
    report.problem("checkpoint.every", "cannot be null: the exported VAE comes from a checkpoint");
}

}  // namespace millrace
