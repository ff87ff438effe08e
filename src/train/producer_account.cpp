#include "producer_account.h"

#include <algorithm>
#include <cmath>
#include <span>

namespace millrace {
namespace {

double images_per_second(const ProducerReport& report) {
  return report.encode_seconds > 0 ? report.images / report.encode_seconds : 0;
}

// Several parcels leave within microseconds of each other, and what a batch took in the encoders is told when it leaves
// them: an interval that ends too soon goes on to the next line. `line`: seconds since the last one, of each producer.
bool tells_enough(const ProducerReport& since, double line) {
  const double encoding = since.encode_seconds + since.encode_wait_seconds;
  const double sending = since.send_seconds + since.send_wait_seconds;
  return since.seconds > 0 && since.seconds >= line / 2 && std::max(encoding, sending) <= 1.1 * since.seconds;
}

}  // namespace

void ProducerAccount::account(std::int64_t steps, Metrics& metrics, Metrics& totals) {
  const auto reports = newest_reports();
  ProducerReport since_before, ever;
  double rate_since = 0, rate_ever = 0;
  std::vector<double> seconds_per_image;  // in the encoders, whatever else their rank does
  for (std::size_t i = 0; i < reports.size(); ++i) {
    ProducerReport since = reports[i];
    since.add(before_[i], -1);
    since_before.add(since);
    ever.add(reports[i]);
    rate_since += images_per_second(since);
    rate_ever += images_per_second(reports[i]);
    seconds_per_image.push_back(since.images > 0 ? since.encode_seconds / since.images : std::nan(""));
  }
  // Else what was true is still the best guess.
  if (tells_enough(since_before, static_cast<double>(reports.size()) * since_line_.seconds())) {
    before_ = reports;
    stages_ = shares_of(since_before);
  }
  since_line_.lap();
  if (rate_since > 0) encode_rate_ = rate_since;
  if (since_before.gpu.is_known() && has_own_gpus()) gpu_ = since_before.gpu;

  metrics.stages = stages_;
  metrics.encode_images_per_second = encode_rate_;
  metrics.encode_gpu = gpu_;
  metrics.queue_fill = queue_fill();
  totals.stages = shares_of(ever);
  totals.encode_images_per_second = rate_ever;
  if (context_.is_root()) warn_of_stragglers("encodes", context_.producer_ranks, slow_.look(seconds_per_image, steps));
}

// Each producer reports to several trainers.
std::vector<ProducerReport> ProducerAccount::newest_reports() const {
  std::vector<ProducerReport> newest(before_.size());
  for (const auto& [producer, report] : context_.task.producer_reports())
    newest[static_cast<std::size_t>(producer)] = report;
  constexpr std::size_t numbers = sizeof(ProducerReport) / sizeof(double);  // it is nothing else
  context_.trainers.all_reduce_max(
      std::span(reinterpret_cast<double*>(newest.data()), numbers * newest.size()));  // they only grow
  return newest;
}

// Else they are the trainers' GPUs.
bool ProducerAccount::has_own_gpus() const {
  return !context_.roles().all_in_one;
}

// The mean over the trainers.
double ProducerAccount::queue_fill() const {
  double fill = 0;
  try {
    fill = context_.task.queue_fill() / context_.trainers.size();
  } catch (...) {  // comes out of the next batch
  }
  context_.trainers.all_reduce_sum(std::span(&fill, 1));
  return fill;
}

}  // namespace millrace
