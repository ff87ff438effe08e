#include "millrace/diffusion/scheduler_config.h"

#include <array>
#include <limits>

#include "millrace/core/error.h"
#include "millrace/io/json.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t most_timesteps = 1'000'000;

template <class Enum>
struct Name {
  Enum value;
  const char* text;
};

constexpr std::array class_names = std::to_array<Name<SchedulerClass>>({
    {SchedulerClass::ddpm, "DDPMScheduler"},
    {SchedulerClass::ddim, "DDIMScheduler"},
    {SchedulerClass::pndm, "PNDMScheduler"},
    {SchedulerClass::euler_discrete, "EulerDiscreteScheduler"},
    {SchedulerClass::dpmsolver_multistep, "DPMSolverMultistepScheduler"},
    {SchedulerClass::unipc_multistep, "UniPCMultistepScheduler"},
    {SchedulerClass::other, "another scheduler"},
});
constexpr std::array prediction_names = std::to_array<Name<Prediction>>({
    {Prediction::epsilon, "epsilon"},
    {Prediction::v_prediction, "v_prediction"},
});
constexpr std::array beta_schedule_names = std::to_array<Name<BetaSchedule>>({
    {BetaSchedule::linear, "linear"},
    {BetaSchedule::scaled_linear, "scaled_linear"},
    {BetaSchedule::squaredcos_cap_v2, "squaredcos_cap_v2"},
});
constexpr std::array spacing_names = std::to_array<Name<TimestepSpacing>>({
    {TimestepSpacing::leading, "leading"},
    {TimestepSpacing::trailing, "trailing"},
    {TimestepSpacing::linspace, "linspace"},
});

template <class Names, class Enum>
const char* name_of(const Names& names, Enum value) {
  for (const auto& name : names) {
    if (name.value == value) return name.text;
  }
  throw bug("an enumerator without a name");
}

// Reads one class's keys out of the file's; every error names the key.
class Reader {
 public:
  Reader(const Json& given, std::string class_name) : given_(given), class_name_(std::move(class_name)) {}

  template <class T>
  T get(const char* key, T fallback) const {
    const auto found = given_.find(key);
    if (found == given_.end() || found->is_null()) return fallback;
    try {
      return found->template get<T>();
    } catch (const nlohmann::json::exception&) {
      fail(Exit::io, "{}: {} has the wrong type: {}", class_name_, key, found->dump());
    }
  }

  template <class Names, class Enum>
  Enum choose(const char* key, const Names& names, Enum fallback) const {
    const std::string text = get<std::string>(key, name_of(names, fallback));
    for (const auto& name : names) {
      if (text == name.text) return name.value;
    }
    refuse(key, text);
  }

  // The setting may only have one of `supported`, or be absent.
  template <class T>
  void only(const char* key, std::initializer_list<T> supported) const {
    const T value = get<T>(key, *supported.begin());
    for (const T& good : supported) {
      if (value == good) return;
    }
    refuse(key, given_.at(key).dump());
  }

  void only_null(const char* key) const {
    const auto found = given_.find(key);
    if (found != given_.end() && !found->is_null()) refuse(key, found->dump());
  }

 private:
  [[noreturn]] void refuse(const char* key, const std::string& value) const {
    throw Error(Exit::io, fmt::format("{}: {} = {} is not supported", class_name_, key, value),
                "change the key in scheduler/scheduler_config.json, or choose another sampler");
  }

  const Json& given_;
  const std::string class_name_;
};

bool has_sigmas(SchedulerClass c) {
  return c == SchedulerClass::euler_discrete || c == SchedulerClass::dpmsolver_multistep ||
         c == SchedulerClass::unipc_multistep;
}

bool has_clip_sample(SchedulerClass c) {
  return c == SchedulerClass::ddpm || c == SchedulerClass::ddim;
}

void refuse_unsupported(const Reader& read, SchedulerClass c) {
  if (has_sigmas(c)) {
    read.only("use_exponential_sigmas", {false});
    read.only("use_beta_sigmas", {false});
  }
  if (c == SchedulerClass::euler_discrete) {
    read.only<std::string>("interpolation_type", {"linear"});
    read.only<std::string>("timestep_type", {"discrete"});
    read.only_null("sigma_min");
    read.only_null("sigma_max");
  }
  if (is_multistep(c)) {
    read.only("solver_order", {2});
    read.only("use_flow_sigmas", {false});
    read.only("use_dynamic_shifting", {false});
  }
  if (c == SchedulerClass::dpmsolver_multistep) {
    read.only<std::string>("algorithm_type", {"dpmsolver++"});
    read.only<std::string>("solver_type", {"midpoint", "logrho", "bh1", "bh2"});  // the last three mean midpoint
    read.only("use_lu_lambdas", {false});
    read.only("lambda_min_clipped", {-std::numeric_limits<double>::infinity()});
    // A DDPM's file always has it. A fixed one has no part in this class, as in diffusers.
    read.only<std::string>("variance_type", {"fixed_small", "fixed_small_log", "fixed_large", "fixed_large_log"});
  }
  if (c == SchedulerClass::unipc_multistep) {
    read.only<std::string>("solver_type", {"bh2", "midpoint", "heun", "logrho"});  // the last three mean bh2
    read.only("predict_x0", {true});
    read.only("lower_order_final", {true});
    read.only("disable_corrector", {Json::array()});
    read.only_null("solver_p");
    read.only_null("sigma_min");
    read.only_null("sigma_max");
    read.only_null("shift_terminal");
  }
  if (c != SchedulerClass::euler_discrete && c != SchedulerClass::pndm) read.only("thresholding", {false});
}

// The noise that training adds, by the defaults that most classes share.
void read_noise(const Reader& read, SchedulerConfig& config) {
  const auto timesteps = read.get<std::int64_t>("num_train_timesteps", config.num_train_timesteps);
  config.beta_start = read.get("beta_start", config.beta_start);
  config.beta_end = read.get("beta_end", config.beta_end);
  config.beta_schedule = read.choose("beta_schedule", beta_schedule_names, config.beta_schedule);
  config.trained_betas = read.get("trained_betas", config.trained_betas);
  config.prediction = read.choose("prediction_type", prediction_names, config.prediction);
  if (config.scheduler_class != SchedulerClass::pndm)
    config.rescale_betas_zero_snr = read.get("rescale_betas_zero_snr", false);
  const auto name = config.class_name();
  if (timesteps < 2 || timesteps > most_timesteps)
    fail(Exit::io, "{}: num_train_timesteps = {}: expected a whole number from 2 to {}", name, timesteps,
         most_timesteps);
  config.num_train_timesteps = static_cast<int>(timesteps);
  if (!config.trained_betas.empty() && config.trained_betas.size() != std::size_t(config.num_train_timesteps))
    fail(Exit::io, "{}: trained_betas has {} values for {} timesteps", name, config.trained_betas.size(),
         config.num_train_timesteps);
}

// How the class removes noise.
void read_sampling(const Reader& read, SchedulerConfig& config) {
  const SchedulerClass c = config.scheduler_class;
  config.timestep_spacing = read.choose("timestep_spacing", spacing_names,
                                        has_sigmas(c) ? TimestepSpacing::linspace : TimestepSpacing::leading);
  config.steps_offset = read.get("steps_offset", 0);
  if (has_clip_sample(c)) {
    config.clip_sample = read.get("clip_sample", true);
    config.clip_sample_range = read.get("clip_sample_range", 1.0);
  }
  if (c == SchedulerClass::ddim) config.set_alpha_to_one = read.get("set_alpha_to_one", true);
  if (c == SchedulerClass::pndm) {
    config.set_alpha_to_one = read.get("set_alpha_to_one", false);
    config.skip_prk_steps = read.get("skip_prk_steps", false);
  }
  if (has_sigmas(c)) {
    read.only<std::string>("final_sigmas_type", {"zero", "sigma_min"});
    config.final_sigma_is_min = read.get<std::string>("final_sigmas_type", "zero") == "sigma_min";
    config.use_karras_sigmas = read.get("use_karras_sigmas", false);
  }
  if (is_multistep(c)) config.lower_order_final = read.get("lower_order_final", true);
  if (c == SchedulerClass::dpmsolver_multistep) config.euler_at_final = read.get("euler_at_final", false);
}

SchedulerConfig resolve(const Json& given, SchedulerClass c) {
  SchedulerConfig config;
  config.given = given;
  config.scheduler_class = c;
  const Reader read(given, config.class_name());
  read_noise(read, config);
  if (c != SchedulerClass::other) read_sampling(read, config);
  return config;
}

// What StableDiffusionPipeline does on loading. A key that the file does not hold stays unknown to `with_class`.
void apply_pipeline_rules(SchedulerConfig& config) {
  config.steps_offset = 1;
  config.clip_sample = false;
  if (config.given.contains("steps_offset")) config.given["steps_offset"] = 1;
  if (config.given.contains("clip_sample")) config.given["clip_sample"] = false;
}

// Classes differ in their defaults, so one that is not known has to have written what its noise is made of, as
// diffusers does.
void check_tells_noise(const Json& json) {
  std::string all;
  for (const auto& known : class_names)
    if (known.value != SchedulerClass::other) all += fmt::format("{}{}", all.empty() ? "" : ", ", known.text);
  for (const char* key : {"num_train_timesteps", "beta_start", "beta_end", "beta_schedule"})
    if (!json.contains(key))
      throw Error(
          Exit::io,
          fmt::format("scheduler class {} is not known, and its file has no {}", json.at("_class_name").dump(), key),
          fmt::format("known classes: {}; Stable Diffusion 3, Flux and other families add noise another way", all));
}

SchedulerClass class_of(const Json& json) {
  const auto name = json.find("_class_name");
  if (name == json.end() || !name->is_string()) fail(Exit::io, "the scheduler's _class_name is missing");
  for (const auto& known : class_names) {
    if (*name == known.text) return known.value;
  }
  check_tells_noise(json);
  return SchedulerClass::other;
}

// That of Stable Diffusion's published folders.
SchedulerClass published_class(Prediction prediction) {
  switch (prediction) {
    case Prediction::epsilon:
      return SchedulerClass::pndm;
    case Prediction::v_prediction:
      return SchedulerClass::ddim;
  }
  throw bug("a prediction without a published folder");
}

}  // namespace

const char* to_string(SchedulerClass scheduler_class) {
  return name_of(class_names, scheduler_class);
}
const char* to_string(Prediction prediction) {
  return name_of(prediction_names, prediction);
}

bool is_multistep(SchedulerClass c) {
  return c == SchedulerClass::dpmsolver_multistep || c == SchedulerClass::unipc_multistep;
}

SchedulerConfig SchedulerConfig::from_json(const nlohmann::ordered_json& json) {
  if (!json.is_object()) fail(Exit::io, "the scheduler's configuration is not a JSON object");
  SchedulerConfig config = resolve(json, class_of(json));
  apply_pipeline_rules(config);
  return config;
}

SchedulerConfig SchedulerConfig::from_text(std::string_view text, std::string_view where) {
  Json json = parse_python_json(text, where);
  // Python writes the default of lambda_min_clipped as -Infinity, read as the lowest number, of which strict writers of
  // JSON make null; absent means the same.
  if (const auto clip = json.find("lambda_min_clipped");
      clip != json.end() && (clip->is_null() || *clip == std::numeric_limits<double>::lowest()))
    json.erase(clip);
  return with_key(where, [&] { return from_json(json); });
}

SchedulerConfig SchedulerConfig::stable_diffusion(Prediction prediction) {
  return from_json({{"_class_name", millrace::to_string(published_class(prediction))},
                    {"beta_end", 0.012},
                    {"beta_schedule", "scaled_linear"},
                    {"beta_start", 0.00085},
                    {"clip_sample", false},
                    {"num_train_timesteps", 1000},
                    {"prediction_type", millrace::to_string(prediction)},
                    {"set_alpha_to_one", false},
                    {"skip_prk_steps", true},
                    {"steps_offset", 1},
                    {"timestep_spacing", "leading"},
                    {"trained_betas", nullptr}});
}

SchedulerConfig SchedulerConfig::with_class(SchedulerClass other) const {
  return other == scheduler_class ? *this : resolve(given, other);
}

SchedulerConfig SchedulerConfig::with_keys(const nlohmann::ordered_json& keys) const {
  Json json = given;
  json["_class_name"] = class_name();
  json.update(keys);
  return from_json(json);
}

nlohmann::json SchedulerConfig::to_json() const {
  const SchedulerClass c = scheduler_class;
  nlohmann::json json(given);
  if (c == SchedulerClass::other) {
    json["steps_offset"] = steps_offset;  // StableDiffusionPipeline warns of the default, 0
    return json;
  }
  json["_class_name"] = millrace::to_string(c);
  json["num_train_timesteps"] = num_train_timesteps;
  json["beta_start"] = beta_start;
  json["beta_end"] = beta_end;
  json["beta_schedule"] = name_of(beta_schedule_names, beta_schedule);
  json["trained_betas"] = trained_betas.empty() ? nlohmann::json() : nlohmann::json(trained_betas);
  json["prediction_type"] = millrace::to_string(prediction);
  json["timestep_spacing"] = name_of(spacing_names, timestep_spacing);
  json["steps_offset"] = steps_offset;
  json["clip_sample"] = clip_sample;  // the pipeline looks for it in every class
  if (c != SchedulerClass::pndm) json["rescale_betas_zero_snr"] = rescale_betas_zero_snr;
  if (c == SchedulerClass::ddim || c == SchedulerClass::pndm) json["set_alpha_to_one"] = set_alpha_to_one;
  if (c == SchedulerClass::pndm) json["skip_prk_steps"] = skip_prk_steps;
  if (has_sigmas(c)) {
    json["use_karras_sigmas"] = use_karras_sigmas;
    json["final_sigmas_type"] = final_sigma_is_min ? "sigma_min" : "zero";
  }
  if (is_multistep(c)) json["lower_order_final"] = lower_order_final;
  if (c == SchedulerClass::dpmsolver_multistep) json["euler_at_final"] = euler_at_final;
  return json;
}

SchedulerConfig SchedulerConfig::as_exported() const {
  return from_json(to_json());
}

std::string SchedulerConfig::class_name() const {
  return scheduler_class == SchedulerClass::other ? given.at("_class_name").get<std::string>()
                                                  : millrace::to_string(scheduler_class);
}

void check_settings(const SchedulerConfig& config) {
  refuse_unsupported(Reader(config.given, config.class_name()), config.scheduler_class);
}

}  // namespace millrace
