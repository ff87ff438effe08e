#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "millrace/config/config.h"
#include "millrace/core/error.h"

// Any bytes as a YAML file: problems are reported, never a crash, a hang or unbounded memory; and what loads without a
// problem loads again from its own dump.
namespace {

using namespace millrace;

struct Inner {
  config::Required dir;
  std::vector<std::string> path;
  std::map<std::string, std::string> filters;
  config::Auto<int> n;
  std::optional<double> x;
  void describe(config::Section& s) {
    s.key("dir", dir, "");
    s.key("path", path, "");
    s.key("filters", filters, "");
    s.key("n", n, "").at_least(1);
    s.key("x", x, "").above(0);
  }
};

struct Root {
  Inner a;
  std::optional<Inner> b;
  Duration d;
  config::Bytes m;
  bool f = false;
  void describe(config::Section& s) {
    s.section("a", a, "");
    s.section("b", b, "");
    s.key("d", d, "");
    s.key("m", m, "");
    s.key("f", f, "");
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Root root;
  const config::Report report = config::load_text(root, std::string(reinterpret_cast<const char*>(data), size), "fuzz");
  if (report.problems().empty())
    ensure(config::diff(config::dump_yaml(root), root).empty(), "a dump loads as the same configuration");
  return 0;
}
