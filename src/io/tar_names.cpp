#include "tar_names.h"

#include "millrace/core/text.h"

namespace millrace {

namespace {

constexpr std::size_t max_field = 255;

// A path whose first component is `__...__` holds notes about the archive.
bool is_meta(std::string_view path) {
  const std::string_view first = path.substr(0, path.find('/'));
  return first.size() >= 4 && first.starts_with("__") && first.ends_with("__");
}

// What macOS puts beside a file for its attributes: `._0001.jpg` comes before `0001.jpg`.
bool is_apple_double(std::string_view path) {
  return path.substr(path.rfind('/') + 1).starts_with("._");
}

// Position of the dot between key and field. A dot at the very start of the last component counts only when the
// component before has none: webdataset's pattern backtracks that far and no further, and its ids are our ids.
std::optional<std::size_t> try_split_point(std::string_view path) {
  const auto slash = path.rfind('/');
  const std::size_t base = slash == std::string_view::npos ? 0 : slash + 1;
  const auto dot = path.find('.', base);
  if (dot == std::string_view::npos) return std::nullopt;
  if (dot > base) return dot;
  if (base == 0) return std::nullopt;
  const auto before = base < 2 ? std::string_view::npos : path.rfind('/', base - 2);
  const std::size_t parent = before == std::string_view::npos ? 0 : before + 1;
  if (path.substr(parent, base - parent).find('.') != std::string_view::npos) return std::nullopt;
  return dot;
}

}  // namespace

std::optional<MemberName> try_member_name(std::string_view path) {
  if (is_meta(path) || is_apple_double(path)) return std::nullopt;
  const auto dot = try_split_point(path);
  if (!dot || path.size() - *dot - 1 > max_field) return std::nullopt;
  std::string_view key = path.substr(0, *dot);
  if (key.starts_with("./")) key.remove_prefix(2);
  return MemberName{std::string(key), lower(path.substr(*dot + 1))};
}

}  // namespace millrace
