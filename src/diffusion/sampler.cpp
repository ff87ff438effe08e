#include "millrace/diffusion/sampler.h"

#include "millrace/core/error.h"
#include "samplers.h"

namespace millrace {
namespace {

// Song et al., "Denoising Diffusion Implicit Models", equation 12 with eta 0.
class Ddim final : public Sampler {
 public:
  Ddim(const SchedulerConfig& config, int steps)
      : Sampler(plan_timesteps(config, steps)),
        alpha_bar_(config),
        prediction_(config.prediction),
        stride_(config.num_train_timesteps / steps),
        limit_(config.clip_sample ? std::optional(config.clip_sample_range) : std::nullopt) {}

  torch::Tensor step(const torch::Tensor& output, std::size_t call, const torch::Tensor& sample) override {
    const int t = static_cast<int>(timesteps().at(call));
    const double here = alpha_bar_.at(t), next = alpha_bar_.at(t - stride_);
    const double alpha = std::sqrt(here), sigma = std::sqrt(1 - here);
    torch::Tensor x0 = predicted_x0(prediction_, output, sample, alpha, sigma);
    if (limit_) x0 = x0.clamp(-*limit_, *limit_);
    const torch::Tensor noise = predicted_noise(prediction_, output, sample, alpha, sigma);
    return std::sqrt(next) * x0 + std::sqrt(1 - next) * noise;
  }

 private:
  AlphaBar alpha_bar_;
  Prediction prediction_;
  int stride_;                   // as the reference: from the number of steps, not from the next timestep
  std::optional<double> limit_;  // of predicted samples
};

// Euler's method on the probability-flow ODE in sigma (Karras et al., algorithm 2 without churn). The sample is
// x_0 + sigma noise, not scaled down to unit variance.
class Euler final : public Sampler {
 public:
  Euler(const SchedulerConfig& config, SigmaPlan plan)
      : Sampler(std::move(plan.timesteps)), sigmas_(std::move(plan.sigmas)), config_(config) {}

  double initial_sigma() const override {
    const double sigma = sigmas_.front();
    return config_.timestep_spacing == TimestepSpacing::leading ? std::sqrt(sigma * sigma + 1) : sigma;
  }

  torch::Tensor scale_model_input(const torch::Tensor& sample, std::size_t call) const override {
    return sample / norm(sigmas_.at(call));
  }

  torch::Tensor step(const torch::Tensor& output, std::size_t call, const torch::Tensor& sample) override {
    const float sigma = sigmas_.at(call), next = sigmas_.at(call + 1);
    const torch::Tensor derivative = (sample - predicted_sample(output, sigma, sample)) / sigma;
    return sample + derivative * (next - sigma);
  }

 private:
  static float norm(float sigma) { return std::sqrt(sigma * sigma + 1); }

  // x_0, in fp32 and in diffusers' order: at zero terminal SNR sigma starts at 4096, where one rounding more or less
  // shows in the fifth digit of the result.
  torch::Tensor predicted_sample(const torch::Tensor& output, float sigma, const torch::Tensor& sample) const {
    switch (config_.prediction) {
      case Prediction::epsilon:
        return sample - sigma * output;
      case Prediction::v_prediction:
        return output * (-sigma / norm(sigma)) + sample / (sigma * sigma + 1);
    }
    throw bug("a prediction that does not tell x_0");
  }

  std::vector<float> sigmas_;
  SchedulerConfig config_;
};

}  // namespace

std::optional<Error> find_refusal(const SchedulerConfig& config) {
  const bool is_known = config.scheduler_class != SchedulerClass::other;
  if (!is_known || config.scheduler_class == SchedulerClass::ddpm)
    return Error(is_known ? Exit::usage : Exit::io,
                 fmt::format("the pipeline's {} makes no images here", config.class_name()),
                 "choose another one: generate.sampler=ddim, pndm, euler, dpmpp_2m or unipc");
  try {
    check_settings(config);
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

std::unique_ptr<Sampler> make_sampler(const SchedulerConfig& config, int steps) {
  if (auto refusal = find_refusal(config)) throw *refusal;
  switch (config.scheduler_class) {
    case SchedulerClass::ddim:
      if (config.rescale_betas_zero_snr && config.prediction == Prediction::epsilon)
        throw Error(
            Exit::usage, "DDIM with epsilon prediction divides by zero at zero terminal SNR",
            "set prediction_type to v_prediction in scheduler/scheduler_config.json if the model was trained so");
      return std::make_unique<Ddim>(config, steps);
    case SchedulerClass::pndm:
      return make_pndm(config, steps);
    case SchedulerClass::euler_discrete:
      return std::make_unique<Euler>(config, plan_sigmas(config, steps));
    case SchedulerClass::dpmsolver_multistep:
      return make_dpmpp_2m(config, steps);
    case SchedulerClass::unipc_multistep:
      return make_unipc(config, steps);
    case SchedulerClass::ddpm:
    case SchedulerClass::other:
      break;
  }
  throw bug("a scheduler class without a sampler was not refused");
}

}  // namespace millrace
