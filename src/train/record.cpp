#include "millrace/train/record.h"

#include <nlohmann/json.hpp>

#include "millrace/core/error.h"
#include "millrace/core/log.h"
#include "millrace/io/safetensors_writer.h"

namespace millrace {
namespace {

std::span<const std::byte> bytes_of(const torch::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

DType dtype_of(const torch::Tensor& tensor) {
  return tensor.scalar_type() == torch::kInt64 ? DType::i64 : DType::f32;
}

// All trainers' parts of one tensor, joined along the samples; whole on rank 0 only. One message holds the same share
// of every part, and less than the 1 GiB that a message may.
torch::Tensor gather(const Group& trainers, const torch::Tensor& part) {
  constexpr std::int64_t message_bytes = 1 << 28;
  const auto mine = part.contiguous();
  const auto row_bytes = static_cast<std::int64_t>(mine.nbytes()) / mine.size(0);
  const auto most = trainers.largest(mine.size(0));  // rows of a trainer
  const auto at_once = std::max<std::int64_t>(1, message_bytes / row_bytes / trainers.size());
  std::vector<std::string> bytes_of_trainer(static_cast<std::size_t>(trainers.size()));
  for (std::int64_t begin = 0; begin < most; begin += at_once) {
    const auto count = std::clamp<std::int64_t>(mine.size(0) - begin, 0, at_once);
    const auto* first = static_cast<const char*>(mine.data_ptr()) + std::min(begin, mine.size(0)) * row_bytes;
    const auto parts = trainers.gather_strings({first, static_cast<std::size_t>(count * row_bytes)});
    for (std::size_t t = 0; t < parts.size(); ++t) bytes_of_trainer[t] += parts[t];
  }
  if (trainers.rank() != 0) return {};
  auto shape = mine.sizes().vec();
  shape[0] = 0;
  for (const auto& bytes : bytes_of_trainer) shape[0] += static_cast<std::int64_t>(bytes.size()) / row_bytes;
  auto whole = torch::empty(shape, mine.options());
  auto* target = static_cast<char*>(whole.data_ptr());
  for (const auto& bytes : bytes_of_trainer) target = std::copy(bytes.begin(), bytes.end(), target);
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

void write_record(const Group& trainers, const std::filesystem::path& run_dir, std::int64_t step,
                  const std::vector<SampleRef>& refs, const std::map<std::string, torch::Tensor>& tensors, double loss,
                  double grad_norm) {
  auto ids = nlohmann::json::array();
  for (const auto& ref : refs) ids.push_back(ref.id);
  auto all_ids = nlohmann::json::array();
  for (const auto& part : trainers.gather_strings(ids.dump()))
    for (auto& id : nlohmann::json::parse(part)) all_ids.push_back(std::move(id));

  std::map<std::string, torch::Tensor> whole;
  for (const auto& [name, tensor] : tensors) whole[name] = gather(trainers, tensor);
  if (trainers.rank() != 0) return;
  whole["loss"] = torch::tensor(static_cast<float>(loss));
  whole["grad_norm"] = torch::tensor(static_cast<float>(grad_norm));

  std::vector<TensorBytes> contents;
  for (const auto& [name, tensor] : whole)
    contents.push_back({{name, dtype_of(tensor), tensor.sizes().vec()}, bytes_of(tensor)});
  const auto path = run_dir / "records" / fmt::format("step-{:08d}.safetensors", step);
  try {
    std::error_code code;
    std::filesystem::create_directories(path.parent_path(), code);
    if (code) fail(Exit::io, "cannot make {}: {}", path.parent_path().string(), code.message());
    save_safetensors(path, contents, {{"format", "pt"}, {"step", std::to_string(step)}, {"ids", all_ids.dump()}});
    log::info("record {}", path.string());
  } catch (const Error& error) {
    log::warning("no record of step {}, training continues: {}", step, error.what());
  }
}

}  // namespace millrace
