#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

#include "millrace/core/append_file.h"

namespace millrace {

// Scalars, pictures and texts as TensorBoard event files (docs/formats.md, "TensorBoard"): length-prefixed protobuf
// records with masked CRC-32C.
class TensorBoardWriter {
 public:
  // Makes a new file in `folder`, and tells the viewer to drop what earlier files hold of later steps than
  // `resumed_step`: also of the first ones, where a run begins again that ended before its first checkpoint. Its name
  // gets the `ending` (checkpoint/line_files.h).
  TensorBoardWriter(const std::filesystem::path& folder, std::int64_t resumed_step, std::string_view ending = {});

  void scalar(std::string_view tag, std::int64_t step, double value);
  // `file`: a PNG or JPEG.
  void image(std::string_view tag, std::int64_t step, std::string_view file, int height, int width);
  void text(std::string_view tag, std::int64_t step, std::string_view markdown);
  void flush();

 private:
  void put(std::string_view event);

  std::optional<AppendFile> file_;
};

}  // namespace millrace
