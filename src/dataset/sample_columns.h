#pragma once
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "millrace/core/error.h"
#include "millrace/dataset/data_config.h"
#include "millrace/dataset/table.h"

namespace millrace {

// Which columns of a table make its samples, in the order in which rows bring them.
struct SampleColumns {
  static constexpr std::size_t image = 0, caption = 1;  // positions in `names`; caption = class number for type class
  std::vector<std::string> names;                       // image, captions, then `key`, then what the filters ask for
  std::size_t captions = 1;
  bool has_key = false;
  bool image_is_place = false;         // image holds paths or addresses, not bytes
  bool image_is_struct = false;        // of bytes and path, as Hugging Face's
  std::vector<std::string> not_there;  // fields of filters without a column

  std::size_t key() const { return caption + captions; }
  std::size_t metadata() const { return key() + (has_key ? 1 : 0); }
};

// A table without a column that a sample needs; `key`: that of `columns` which would name it.
struct ColumnError final : Error {
  ColumnError(const std::string& message, const std::string& hint, std::string key)
      : Error(Exit::usage, message, hint), key(std::move(key)) {}
  std::string key;
};

// Those that `config.columns` names, else the first of the usual names that `table` has. ColumnError naming the
// table and its columns when there is no image or caption.
SampleColumns choose_columns(const std::vector<TableColumn>& table, const SourceConfig& config,
                             const std::string& path);

}  // namespace millrace
