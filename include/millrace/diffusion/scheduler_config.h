#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

// scheduler/scheduler_config.json of a diffusers pipeline: the noise schedule and how images are sampled from it.
namespace millrace {

// `other`: any class that is not one of these. Training needs the noise it adds, which its file tells.
enum class SchedulerClass { ddpm, ddim, pndm, euler_discrete, dpmsolver_multistep, unipc_multistep, other };
enum class Prediction { epsilon, v_prediction };
enum class BetaSchedule { linear, scaled_linear, squaredcos_cap_v2 };
enum class TimestepSpacing { leading, trailing, linspace };

const char* to_string(SchedulerClass scheduler_class);  // "PNDMScheduler", ...; "another scheduler"
const char* to_string(Prediction prediction);           // "epsilon", "v_prediction"

bool is_multistep(SchedulerClass scheduler_class);  // DPM-Solver, UniPC

// The settings of one scheduler class, with that class's own defaults where the file says nothing. Members of other
// classes keep neutral values (false). Settings that only sampling needs may be ones that this program does not
// implement: check_settings refuses those.
struct SchedulerConfig {
  SchedulerClass scheduler_class = SchedulerClass::ddpm;
  int num_train_timesteps = 1000;
  double beta_start = 1e-4, beta_end = 0.02;
  BetaSchedule beta_schedule = BetaSchedule::linear;
  std::vector<float> trained_betas;  // replaces the beta schedule when not empty
  Prediction prediction = Prediction::epsilon;
  TimestepSpacing timestep_spacing = TimestepSpacing::leading;
  int steps_offset = 0;
  bool rescale_betas_zero_snr = false;  // every class but PNDM
  bool clip_sample = false;             // DDPM, DDIM: predicted samples, to +- clip_sample_range
  double clip_sample_range = 1;
  bool set_alpha_to_one = false;    // DDIM, PNDM: alpha-bar beyond the last step is 1, not alpha-bar of timestep 0
  bool skip_prk_steps = false;      // PNDM
  bool use_karras_sigmas = false;   // Euler, DPM-Solver, UniPC
  bool final_sigma_is_min = false;  // the same: end at sigma of timestep 0 instead of 0
  bool lower_order_final = false;   // DPM-Solver, UniPC
  bool euler_at_final = false;      // DPM-Solver

  // What a Stable Diffusion pipeline does with this file: StableDiffusionPipeline sets steps_offset to 1 and
  // clip_sample to false whatever the file says. Error(io) naming the key for wrong types, for noise that is not
  // implemented, and for an unknown class whose file does not tell its noise.
  static SchedulerConfig from_json(const nlohmann::ordered_json& json);
  // The same from the file's text, where Python may have written -Infinity. `where` names the file in errors.
  static SchedulerConfig from_text(std::string_view text, std::string_view where);
  // The published files of Stable Diffusion: PNDM for epsilon (1.5, 2.1-base), DDIM for v (2.1).
  static SchedulerConfig stable_diffusion(Prediction prediction);

  // diffusers' `OtherScheduler.from_config(scheduler.config)`: keys that the file holds carry over, all others take the
  // new class's defaults. The own class changes nothing.
  SchedulerConfig with_class(SchedulerClass other) const;
  // The same file with these keys set.
  SchedulerConfig with_keys(const nlohmann::ordered_json& keys) const;
  // All keys of the class, then what else the file held; keys sorted as the reference writer does. Of an unknown class
  // what the file held, and steps_offset.
  nlohmann::json to_json() const;
  // Read back from what to_json writes. There every key has a value, so that also those that this file does not hold
  // carry over to another class.
  SchedulerConfig as_exported() const;
  // "PNDMScheduler", ..., also of an unknown class.
  std::string class_name() const;

  nlohmann::ordered_json given;  // the keys of the file, the ones of other classes included
};

// Error(io) naming the key where the file has a setting, for sampling, that is not implemented.
void check_settings(const SchedulerConfig& config);

}  // namespace millrace
