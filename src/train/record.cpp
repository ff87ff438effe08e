#include "millrace/train/record.h"

#include <nlohmann/json.hpp>

#include <algorithm>

#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/json_text.h"
#include "millrace/core/log.h"
#include "millrace/core/run_files.h"
#include "millrace/io/safetensors_writer.h"

namespace millrace {
namespace {

std::span<const std::byte> bytes_of(const torch::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

DType dtype_of(const torch::Tensor& tensor) {
  return tensor.scalar_type() == torch::kInt64 ? DType::i64 : DType::f32;
}

// All trainers' parts of one tensor, joined along the samples; whole on rank 0 only.
torch::Tensor gather(const Group& trainers, const torch::Tensor& part) {
  const auto mine = part.contiguous();
  const auto parts = trainers.gather_strings({static_cast<const char*>(mine.data_ptr()), mine.nbytes()});
  if (!trainers.is_root()) return {};
  const auto row_bytes = mine.nbytes() / static_cast<std::size_t>(mine.size(0));
  std::size_t bytes = 0;
  for (const auto& each : parts) bytes += each.size();
  auto shape = mine.sizes().vec();
  shape[0] = static_cast<std::int64_t>(bytes / row_bytes);
  auto whole = torch::empty(shape, mine.options());
  auto* target = static_cast<char*>(whole.data_ptr());
  for (const auto& each : parts) target = std::ranges::copy(each, target).out;
  return whole;
}

}  // namespace

void RecordPieces::start() {
  active_ = true;
  pieces_.clear();
}

void RecordPieces::keep(const std::string& name, const torch::Tensor& piece) {
  if (!active_) return;
  const auto dtype = piece.is_floating_point() ? torch::kFloat32 : torch::kInt64;
  pieces_[name].push_back(piece.detach().to(torch::kCPU, dtype));
}

std::map<std::string, torch::Tensor> RecordPieces::take() {
  std::map<std::string, torch::Tensor> whole;
  for (const auto& [name, pieces] : pieces_) whole[name] = torch::cat(pieces);
  pieces_.clear();
  active_ = false;
  return whole;
}

std::vector<std::string> gather_ids(const Group& trainers, const std::vector<SampleRef>& refs) {
  auto mine = nlohmann::json::array();
  for (const auto& ref : refs) mine.push_back(ref.id);
  std::vector<std::string> all;
  for (const auto& part : trainers.gather_strings(dump_any(mine)))
    for (auto& id : nlohmann::json::parse(part)) all.push_back(std::move(id.get_ref<std::string&>()));
  return all;
}

void write_record(const Group& trainers, const std::filesystem::path& run_dir, std::int64_t step,
                  const std::vector<SampleRef>& refs, const std::map<std::string, torch::Tensor>& tensors, double loss,
                  double grad_norm) {
  const auto ids = gather_ids(trainers, refs);
  std::map<std::string, torch::Tensor> whole;
  for (const auto& [name, tensor] : tensors) whole[name] = gather(trainers, tensor);
  if (!trainers.is_root()) return;
  whole["loss"] = torch::tensor(static_cast<float>(loss));
  whole["grad_norm"] = torch::tensor(static_cast<float>(grad_norm));

  std::vector<TensorBytes> contents;
  for (const auto& [name, tensor] : whole)
    contents.push_back({{name, dtype_of(tensor), tensor.sizes().vec()}, bytes_of(tensor)});
  const auto path = run_dir / "records" / (step_name(step) + ".safetensors");
  try {
    make_directories(path.parent_path());
    save_safetensors(path, contents,
                     {{"format", "pt"}, {"step", std::to_string(step)}, {"ids", nlohmann::json(ids).dump()}});
    log::info("record {}", path.string());
  } catch (const Error& error) {
    log::warning("no record of step {}, training continues: {}", step, error.what());
  }
}

}  // namespace millrace
