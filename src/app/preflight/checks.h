#pragma once
#include <cstdint>
#include <filesystem>

#include "launch/session.h"
#include "load_config.h"
#include "millrace/encode/encoder.h"
#include "preflight/checkup.h"
#include "preflight/scratch_folder.h"
#include "train/train_plan.h"

// The checks of `millrace preflight`, in their order, each a line or two of its table. All are collective over the
// world, and some fill in a part of the session or the plan for those that follow.
namespace millrace::preflight {

// Checks that the program, its libraries and its configuration, which is returned, are the same on all ranks.
Loaded<TrainConfig> check_program(Checkup& checkup, const CommandLine& line);
void check_clocks(Checkup& checkup);
// Checks threads, memory and GPUs, and plans who does what.
void check_machines(Checkup& checkup, Session& session, TrainPlan& plan);
// The line about devices, from what ranks have told about theirs: "device", "kind", and of a GPU "uuid", "free" and
// "share". Error(usage) if trainers share one and no host is unlike the others. Communicates nothing.
Row judge_devices(const Checkup& checkup, const Answers& answers, const Roles& roles);
void check_model_folder(Checkup& checkup, TrainPlan& plan);
// Returns the group of the ranks with the role of this one.
Group check_plan(Checkup& checkup, const Session& session, TrainPlan& plan, config::Report& report);
void check_folder(Checkup& checkup, const char* name, const std::string& key, const std::filesystem::path& where,
                  ScratchFolder& scratch);
void check_data(Checkup& checkup, const TrainPlan& plan);
void check_messages(Checkup& checkup, const Roles& roles);
// Checks what sums the gradients of the trainers: NCCL between GPUs, else MPI.
void check_gradients(Checkup& checkup, const Session& session, const TrainPlan& plan, const Group& trainers);
// Encodes a batch on all producers. Returns the encoder: if a rank trains as well, it stays in memory beside the U-Net.
std::optional<Encoder> check_encoders(Checkup& checkup, const Session& session, const TrainPlan& plan);
// Takes the same step on all trainers; returns the bytes of a checkpoint.
std::uint64_t check_step(Checkup& checkup, const Session& session, const TrainPlan& plan, const Group& trainers);
void check_space(Checkup& checkup, const TrainConfig& config, std::uint64_t checkpoint_bytes);

}  // namespace millrace::preflight
