#include "snapshot.h"

#include <c10/util/Exception.h>
#include <torch/utils.h>

#include <algorithm>
#include <bit>
#include <new>

#include "millrace/checkpoint/manifest.h"
#include "millrace/core/error.h"
#include "millrace/nn/device.h"
#include "millrace/nn/torch_error.h"

namespace millrace {
namespace {

std::span<float> floats_of(const torch::Tensor& tensor, std::int64_t begin, std::int64_t elements) {
  return {tensor.data_ptr<float>() + begin, static_cast<std::size_t>(elements)};
}

// From a GPU it is only begun.
void copy_elements(const ShardedAdamW& optimizer, const std::string& kind, const Slice& slice, std::span<float> to) {
  torch::from_blob(to.data(), {slice.end - slice.begin}, torch::kFloat32)
      .copy_(optimizer.shard_of(kind, slice), /*non_blocking=*/true);
}

torch::Device device_of(const ShardedAdamW& optimizer) {
  return optimizer.state().at("weights").at(0).device();
}

torch::Tensor host_memory(std::int64_t elements, bool pinned) {
  return torch::empty({elements}, torch::TensorOptions(torch::kFloat32).pinned_memory(pinned));
}

}  // namespace

Snapshot::Snapshot(FilePlan files, std::vector<std::string> kinds, const Group& trainers)
    : files_(std::move(files)), kinds_(std::move(kinds)), trainer_(trainers.rank()) {
  const auto file = files_.file_of(trainer_);
  if (file) mates_ = files_.trainers_of(*file);
  if (files_.trainers_of(0).size() > 1) among_mates_ = make_host_collectives(trainers.split(file.value_or(-1) + 1, 0));
  for (const int mate : mates_) {
    std::int64_t elements = 0;
    for (const auto& piece : pieces_of(mate)) elements += piece.elements();
    if (among_mates_) passed_elements_ = std::max(passed_elements_, elements);
  }
  if (!file || files_.writer_of(*file) != trainer_) return;
  for (const auto& kind : kinds_)
    for (const auto& slice : files_.slices_of(*file))
      entries_[CheckpointManifest::key(kind, slice.name)] = {kind, slice, 0};
  for (auto& [key, entry] : entries_) {
    entry.offset = file_elements_;
    file_elements_ += entry.slice.end - entry.slice.begin;
  }
}

std::vector<Snapshot::Piece> Snapshot::pieces_of(int trainer) const {
  std::vector<Piece> pieces;
  for (const auto& kind : kinds_)
    for (auto& slice : files_.part_of(trainer)) {
      const auto entry = entries_.find(CheckpointManifest::key(kind, slice.name));
      pieces.push_back({entry == entries_.end() ? nullptr : &entry->second, kind, std::move(slice)});
    }
  return pieces;
}

std::span<float> Snapshot::place_of(const Piece& piece) const {
  return floats_of(file_, piece.entry->offset + piece.slice.begin - piece.entry->slice.begin, piece.elements());
}

std::uint64_t Snapshot::bytes(bool pinned) const {
  std::uint64_t sum = 0;
  for (const auto elements : {file_elements_, passed_elements_}) {
    const auto bytes = sizeof(float) * static_cast<std::uint64_t>(elements);
    sum += pinned ? std::bit_ceil(bytes) : bytes;
  }
  return sum;
}

void Snapshot::allocate(bool pinned) {
  try {
    file_ = host_memory(file_elements_, pinned);
    passed_ = host_memory(passed_elements_, pinned);
  } catch (const std::bad_alloc&) {
    fail(Exit::io, "the host has too little memory for this process");
  } catch (const c10::Error& error) {
    if (!tells_of_too_little_memory(error.msg())) throw;
    fail(Exit::io, "{}", error.what_without_backtrace());
  }
}

void Snapshot::release() {
  file_ = torch::Tensor();
  passed_ = torch::Tensor();
}

void Snapshot::copy(const ShardedAdamW& optimizer) {
  const torch::NoGradGuard no_grad;
  if (among_mates_) return pass_parts(optimizer);
  for (const auto& piece : pieces_of(trainer_)) copy_elements(optimizer, piece.kind, piece.slice, place_of(piece));
  finish_own_work(device_of(optimizer));
}

// Each mate's part in turn goes to all of them; who writes keeps it.
void Snapshot::pass_parts(const ShardedAdamW& optimizer) {
  for (std::size_t mate = 0; mate < mates_.size(); ++mate) {
    const auto pieces = pieces_of(mates_[mate]);
    const bool own = mates_[mate] == trainer_;
    std::int64_t elements = 0;
    for (const auto& piece : pieces) {
      if (own) copy_elements(optimizer, piece.kind, piece.slice, floats_of(passed_, elements, piece.elements()));
      elements += piece.elements();
    }
    if (own) finish_own_work(device_of(optimizer));
    among_mates_->broadcast(buffer_of(floats_of(passed_, 0, elements)), static_cast<int>(mate));
    if (entries_.empty()) continue;
    std::int64_t begin = 0;
    for (const auto& piece : pieces) {
      std::ranges::copy(floats_of(passed_, begin, piece.elements()), place_of(piece).begin());
      begin += piece.elements();
    }
  }
}

torch::Tensor Snapshot::copied(const Entry& entry) const {
  return file_.narrow(0, entry.offset, entry.slice.end - entry.slice.begin);
}

torch::Tensor Snapshot::present(const ShardedAdamW& optimizer, const Entry& entry) {
  return optimizer.shard_of(entry.kind, entry.slice).cpu();
}

}  // namespace millrace
