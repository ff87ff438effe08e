#include <algorithm>
#include <random>

#include "millrace/nn/device.h"
#include "millrace/text/tokenizer.h"
#include "preflight/checks.h"

namespace millrace::preflight {
namespace {

using nlohmann::json;

// Noise with a caption, the same everywhere. The encoder fills its batch with it.
TransformedSample make_sample(const TrainPlan& plan) {
  const auto& c = plan.config;
  TransformedSample sample;
  const auto side = static_cast<std::size_t>(c.transform.resolution);
  sample.image = {c.transform.resolution, c.transform.resolution, Pixels(3 * side * side)};
  std::mt19937 random(7);
  for (auto& value : sample.image.pixels) value = static_cast<std::uint8_t>(random());
  sample.tokens = ClipTokenizer::load(plan.pipeline.component("tokenizer"), c.tokenizer).encode("a photograph");
  return sample;
}

double mean_size(const torch::Tensor& values) {
  return values.to(torch::kDouble).abs().mean().item<double>();
}

void judge_encodings(const Answers& answers, const char* of, Row& row) {
  constexpr double tolerance = 0.02;  // of bfloat16 on different kinds of GPUs
  const auto sizes = numbers_of(answers, of);
  if (sizes.empty()) return;  // trainers make the text embeddings
  const auto usual = usual_number(sizes);
  if (!usual)
    throw Error(Exit::numerics, fmt::format("the {} of noise are {} on every producer", of, sizes[0].value),
                "encode.dtype=bfloat16 or float32: the VAE of SD 1 and 2 can overflow in float16");
  for (const auto& [rank, size] : far_from(sizes, *usual, tolerance))
    row.suspect(rank, "its {} are {:.4g} on average, {:.4g} elsewhere for the same sample", of, size, *usual);
}

Row judge(const EncodeConfig& config, const Answers& loaded, const Answers& encoded) {
  const auto seconds = most(facts_of<double>(loaded, "seconds"));
  const auto memory = most(facts_of<std::uint64_t>(encoded, "memory"));
  const auto rates = facts_of<double>(encoded, "rate");
  const auto slowest = least(rates);
  Row row{.detail =
              fmt::format("loaded in {}, {:.1f} img/s in batches of {} on {} {}, slowest {:.1f}; peak memory {}",
                          describe_seconds(seconds.value), median(rates), config.batch_size, rates.size(),
                          rates.size() == 1 ? "producer" : "producers", slowest.value, format_bytes(memory.value))};
  judge_encodings(encoded, "moments", row);
  judge_encodings(encoded, "text embeddings", row);
  return row;
}

}  // namespace

std::optional<Encoder> check_encoders(Checkup& checkup, const Session& session, const TrainPlan& plan) {
  constexpr double load_seconds = 120;
  std::optional<Encoder> encoder;
  if (!plan.input.encoding.encodes) {
    checkup.skip("encoders", "data.train holds latents");
    return encoder;
  }
  const auto& c = plan.config;
  const bool takes_part = plan.roles.produces(checkup.rank());
  const auto loaded = checkup.demand("encoders", load_seconds, [&]() -> json {
    if (!takes_part) return {};
    const auto dtype = parse_dtype(c.encode.dtype, session.device);
    const Group alone;  // each reads by itself: that all can is what is asked
    const auto [vae, text] = load_encoders(alone, c, plan.pipeline, plan.input.encoding, session.device);
    encoder.emplace(vae, text, session.device, dtype, c.encode.batch_size);
    return {{"on_gpu", session.device.is_cuda()}};
  });
  const bool all_on_gpus =
      std::ranges::all_of(facts_of<bool>(loaded, "on_gpu"), [](const auto& fact) { return fact.value; });
  const double encode_seconds = all_on_gpus ? 60 : 1200;  // a large VAE on a CPU takes seconds per sample
  const auto encoded = checkup.ask("encoders", encode_seconds, [&]() -> json {
    if (!takes_part) return {};
    const std::vector<TransformedSample> samples(1, make_sample(plan));
    constexpr double long_seconds = 10;  // of a batch in which choosing kernels makes no difference
    Stopwatch watch;
    auto batch = encoder->encode(samples);
    if (watch.seconds() < long_seconds) {
      watch = Stopwatch();
      batch = encoder->encode(samples);
    }
    json facts = {{"rate", c.encode.batch_size / watch.seconds()},
                  {"moments", number_text(mean_size(batch.moments))},
                  {"memory", peak_memory_bytes(session.device)}};
    if (!plan.input.encoding.shape.has_tokens()) facts["text embeddings"] = number_text(mean_size(batch.text));
    return facts;
  });
  checkup.conclude([&] { return judge(c.encode, loaded, encoded); });
  return encoder;
}

}  // namespace millrace::preflight
