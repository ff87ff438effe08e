#pragma once
#include <exception>
#include <optional>

#include "millrace/diffusion/objective.h"
#include "millrace/encode/text_encoder.h"
#include "millrace/models/unet_2d_condition.h"
#include "millrace/nn/device_work.h"
#include "millrace/parcels/batch_receiver.h"
#include "millrace/train/task.h"

namespace millrace {

// Trains the U-Net on encoded samples.
class DiffusionTask : public Task {
 public:
  struct Options {
    ObjectiveConfig objective;
    std::uint64_t seed = 0;
    int global_batch = 1;
    int first_place = 0;                      // index of this trainer's first sample in the global batch
    std::int64_t step = 0;                    // the last one taken before
    LatentScale latent_scale;                 // of the VAE
    torch::Tensor null_text;                  // f16 (77, C)
    std::optional<TextEncoder> text_encoder;  // if samples bring tokens; batch.micro rows at a time
    torch::Device device = torch::kCPU;
    torch::Dtype dtype = torch::kFloat32;
    std::vector<int> producers;  // index among all producers, by position in the receiver's list
    int slots = 0;               // HandoffSize::slots
  };
  DiffusionTask(UNet2DConditionModel unet, NoiseSchedule schedule, BatchReceiver source, ParcelReceiver& receiver,
                Options options);
  ~DiffusionTask() override;

  bool next_batch(double seconds) override;
  std::optional<Overdue> overdue(double seconds) const override;
  void stop_producers() override { receiver_.request_stop(); }
  const std::vector<SampleRef>& refs() const override { return local_batch_.refs; }
  std::vector<torch::Tensor> inputs(std::int64_t begin, std::int64_t end) override;
  torch::Tensor loss(const std::vector<torch::Tensor>& inputs) override;
  void look_ahead() override;
  std::map<int, ProducerReport> producer_reports() override;
  double queue_fill() override;
  LedgerDelta take_ledger_delta() override { return source_.take_ledger_delta(); }
  int producer_signal() override { return receiver_.signal_number(); }

 private:
  // Samples [begin, end) of a step's local batch, being copied to the device.
  struct Sent {
    std::int64_t step = 0, begin = 0, end = 0;
    Upload moments;
    Upload text;  // empty if it has to be encoded first
  };
  void send(const EncodedBatch& batch, std::int64_t step, std::int64_t begin, std::int64_t end);
  torch::Tensor take_text(Sent& sent);
  std::vector<std::int64_t> draw_timesteps() const;
  void check_tokens() const;
  void seed_dropout(std::int64_t begin) const;

  UNet2DConditionModel unet_;
  NoiseSchedule schedule_;
  BatchReceiver source_;
  ParcelReceiver& receiver_;
  Options options_;
  EncodedBatch local_batch_;
  std::optional<EncodedBatch> early_batch_;  // the next batch, if it has arrived during a step
  std::exception_ptr early_failure_;         // the error that came instead
  Sent sent_;                                // the last ones
  std::int64_t micro_batch_ = 0;             // samples in the first inputs() of a step
  std::int64_t end_ = 0;                     // `end` of the last inputs()
  std::int64_t step_;                        // that of the local batch
  std::vector<std::int64_t> timesteps_;      // of the local batch's samples
};

}  // namespace millrace
