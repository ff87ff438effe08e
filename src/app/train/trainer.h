#pragma once
#include <torch/types.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "millrace/checkpoint/run_lease.h"
#include "millrace/handoff/parcel_receiver.h"
#include "millrace/train/diffusion_task.h"
#include "millrace/train/loop.h"
#include "millrace/train/validation.h"
#include "train/networks.h"
#include "train/sharded_training.h"
#include "train/train_plan.h"

namespace millrace {

// The trainer's part of `train` on this rank: the U-Net with its optimizer, and the set it is validated on.
class Trainer {
 public:
  // Takes from `networks` what is meant for a trainer. `null_text`: embeddings of the empty caption, f16 (77, C) on the
  // host. `validation`: this rank's part of data.validation. All references must outlive the trainer.
  Trainer(const Session& session, const TrainPlan& plan, LoadedNetworks& networks, torch::Tensor null_text,
          std::vector<EncodedBatch> validation, const Group& trainers, const RunLease& lease);

  // Trains by run_loop on parcels of `receiver`, from `start`; called again when training has gone back to an earlier
  // `start`. Collective over the trainers.
  LoopResult train(const Start& start, ParcelReceiver& receiver);

 private:
  void load(const Start& start);
  void build(const Start& start);
  DiffusionTask make_task(const Start& start, ParcelReceiver& receiver) const;
  Validation make_validation();
  PicturePainter make_painter(LoadedNetworks& networks) const;
  void report_silent(const Overdue& overdue, const Error& error) const;

  const Session& session_;
  const TrainPlan& plan_;
  const Group& trainers_;
  const RunLease& lease_;
  const AutoencoderKLConfig vae_;
  const NoiseSchedule schedule_;
  const torch::Dtype dtype_;
  UNet2DConditionModel unet_;
  std::optional<EmaStart> ema_start_;
  std::optional<TextEncoder> text_encoder_;
  torch::Tensor null_text_;
  std::vector<EncodedBatch> validation_batches_;
  std::optional<ShardedTraining> training_;
  std::optional<Validation> validation_;
  std::optional<PicturePainter> painter_;
};

}  // namespace millrace
